"""A registered model as MLflow serves it: the model code, how it is logged, and the question asked before promotion."""
