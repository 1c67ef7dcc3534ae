"""Loggers: progress for people, log records and trackers (TensorBoard, W&B, MLflow) for programs."""
