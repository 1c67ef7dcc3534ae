"""Inputs: tensors, images, records and texts, and the way from what was read to what a network sees."""
