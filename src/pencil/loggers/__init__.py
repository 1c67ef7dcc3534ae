"""Loggers: progress for people, trackers (TensorBoard, W&B, MLflow) for programs."""
