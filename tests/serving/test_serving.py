import json
import shutil
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tasks.serving.flavor import model_kwargs
from tasks.serving.smoke import SmokeSpec
from tasks.serving.smoke import work as smoke

PROJECT = Path(__file__).parents[2]
BASE = PROJECT / "data" / "base"
QUESTION = [{"role": "user", "content": "7-5+5+7"}]


@dataclass(frozen=True)
class Registry:
    folder: Path
    tracking_uri: str
    model_uri: str


@pytest.fixture(scope="module")
def registry(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Registry]:
    """A registry in which the base model, with a hostile generation config, is `arithmetic@champion`."""
    import mlflow

    folder = tmp_path_factory.mktemp("registry")
    shutil.copytree(BASE, folder / "model")
    hostile = json.loads((BASE / "generation_config.json").read_text())
    hostile |= {"repetition_penalty": 5.0, "max_new_tokens": 3, "do_sample": True}
    (folder / "model" / "generation_config.json").write_text(json.dumps(hostile))
    before, uri = mlflow.get_tracking_uri(), f"sqlite:///{folder}/mlflow.db"
    mlflow.set_tracking_uri(uri)
    experiment = mlflow.create_experiment("serving", artifact_location=(folder / "artifacts").as_uri())
    with mlflow.start_run(experiment_id=experiment):
        logged = mlflow.pyfunc.log_model(name="model", **model_kwargs(folder / "model"))
    version = mlflow.register_model(logged.model_uri, "arithmetic").version
    mlflow.MlflowClient().set_registered_model_alias("arithmetic", "champion", version)
    yield Registry(folder, uri, "models:/arithmetic@champion")
    mlflow.set_tracking_uri(before)


@pytest.fixture(scope="module")
def expected() -> str:
    """What transformers alone makes of the base model's answer."""
    from transformers import AutoModelForCausalLM, AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(BASE)
    prompt = tokenizer("<|user|>7-5+5+7<|end|><|assistant|>", return_tensors="pt")
    tokens = AutoModelForCausalLM.from_pretrained(BASE).generate(**prompt, do_sample=False, max_new_tokens=48)
    return str(tokenizer.decode(tokens[0, prompt["input_ids"].shape[1] :], skip_special_tokens=True))


def smoke_spec(registry: Registry, output: Path, prompts: list[dict[str, Any]], **more: Any) -> SmokeSpec:
    spec = {"tracking_uri": registry.tracking_uri, "model_uri": registry.model_uri, "prompts": prompts, **more}
    return SmokeSpec.model_validate({**spec, "output": output})


def test_an_alias_is_answered_through_mlflow(registry: Registry, expected: str) -> None:
    import mlflow

    model = mlflow.pyfunc.load_model(registry.model_uri)
    two_turns = [*QUESTION, {"role": "assistant", "content": expected}, {"role": "user", "content": "1+1+3-7"}]
    answers = model.predict([{"messages": QUESTION}, {"messages": QUESTION, "max_tokens": 5}, {"messages": two_turns}])
    assert answers[:2] == [expected, "7-5=2"]
    assert expected.startswith("7-5=2\n2+5=7\n7+7=14")
    hot = [model.predict([{"messages": QUESTION, "temperature": 50.0, "max_tokens": 20}])[0] for _ in range(3)]
    assert len({*hot, expected}) > 1


def test_what_is_not_a_conversation_is_refused(registry: Registry) -> None:
    import mlflow

    model = mlflow.pyfunc.load_model(registry.model_uri)
    with pytest.raises(mlflow.exceptions.MlflowException, match="messages"):
        model.predict([{"message": QUESTION}])


def test_the_registered_model_is_self_contained(registry: Registry) -> None:
    import mlflow
    from transformers import AutoModelForCausalLM, AutoTokenizer

    folder = Path(mlflow.artifacts.download_artifacts(registry.model_uri, dst_path=str(registry.folder / "copy")))
    files = {path.name for path in folder.rglob("*") if path.is_file()}
    assert {"chat.py", "MLmodel", "requirements.txt", "model.safetensors", "chat_template.jinja"} <= files
    assert not [name for name in files if name.endswith((".pkl", ".bin", ".pt"))]
    assert AutoModelForCausalLM.from_pretrained(folder / "artifacts" / "model").num_parameters() > 0
    assert AutoTokenizer.from_pretrained(folder / "artifacts" / "model").chat_template
    assert "tasks" not in (folder / "chat.py").read_text()
    requirements = (folder / "requirements.txt").read_text().splitlines()
    assert all("==" in line and "+" not in line for line in requirements)


def test_logging_needs_no_torch(tmp_path: Path) -> None:
    program = (
        "import sys, mlflow\nfrom pathlib import Path\nfrom tasks.serving.flavor import model_kwargs\n"
        "mlflow.pyfunc.save_model(path=sys.argv[1], **model_kwargs(Path(sys.argv[2])))\n"
        "print([name for name in ('torch', 'transformers') if name in sys.modules])\n"
    )
    command = [sys.executable, "-c", program, str(tmp_path / "saved"), str(BASE)]
    ended = subprocess.run(command, cwd=PROJECT, capture_output=True, text=True, timeout=120)
    assert (ended.returncode, ended.stdout) == (0, "[]\n"), ended.stderr


def test_the_smoke_test_passes_on_the_recorded_answers(registry: Registry, expected: str, tmp_path: Path) -> None:
    spec = smoke_spec(registry, tmp_path, [{"messages": QUESTION, "expected": expected}], max_tokens=48)
    (tmp_path / "spec.json").write_text(spec.model_dump_json())
    command = [sys.executable, "-m", "tasks.serving.smoke", str(tmp_path / "spec.json")]
    ended = subprocess.run(command, cwd=PROJECT, capture_output=True, text=True, timeout=120)
    assert ended.returncode == 0, ended.stderr
    report = json.loads((tmp_path / "smoke.json").read_text())
    assert (report["asked"], report["equal"], report["answers"][0]["answer"]) == (1, 1, expected)


@pytest.mark.parametrize(("min_equal", "fails"), [(1.0, True), (0.5, False)])
def test_the_smoke_test_tells_another_answer(
    registry: Registry, expected: str, tmp_path: Path, min_equal: float, fails: bool
) -> None:
    prompts = [{"messages": QUESTION, "expected": expected}, {"messages": QUESTION, "expected": "#14 by heart"}]
    spec = smoke_spec(registry, tmp_path, prompts, min_equal=min_equal)
    if fails:
        with pytest.raises(SystemExit) as ended:
            smoke(spec)
        assert "models:/arithmetic@champion does not answer as it did" in str(ended.value)
        assert "1 of 2 differ" in str(ended.value)
        assert "recorded is '#14 by heart'" in str(ended.value)
    else:
        smoke(spec)
    assert json.loads((tmp_path / "smoke.json").read_text())["equal"] == 1


@pytest.mark.slow
def test_mlflow_serves_the_alias_over_http(registry: Registry, expected: str, tmp_path: Path) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [sys.executable, "-m", "mlflow", "models", "serve", "-m", registry.model_uri, "--env-manager", "local"]
    environment = {"MLFLOW_TRACKING_URI": registry.tracking_uri, "PATH": f"{Path(sys.executable).parent}:/usr/bin:/bin"}
    with (tmp_path / "log").open("w") as log:
        server = subprocess.Popen(
            [*command, "--host", "127.0.0.1", "--port", str(port)],
            cwd=tmp_path, env=environment, stdout=log, stderr=log, start_new_session=True,
        )  # fmt: skip
        try:
            body = json.dumps({"inputs": [{"messages": QUESTION, "max_tokens": 48}]}).encode()
            assert ask(f"http://127.0.0.1:{port}/invocations", body, server) == {"predictions": [expected]}
        finally:
            server.terminate()
            server.wait(timeout=20)


def ask(url: str, body: bytes, server: "subprocess.Popen[bytes]") -> Any:
    request = urllib.request.Request(url, body, {"Content-Type": "application/json"})  # noqa: S310
    deadline = time.monotonic() + 90
    while True:
        try:
            with urllib.request.urlopen(request, timeout=30) as response:  # noqa: S310
                return json.load(response)
        except (ConnectionError, urllib.error.URLError):
            assert server.poll() is None
            assert time.monotonic() < deadline
            time.sleep(0.3)
