"""Export: labels as tables, for cleanlab and for datasets; class maps. Importing this package does not import torch.

`pencil.export.image_folder` (images sorted by class), `pencil.export.table_columns` (the columns of the user's table),
`pencil.export.tools` (labelling tools) and `pencil.export.network` (the network) need torch and must be imported
explicitly.
"""

from pencil.export.class_maps import save_maps
from pencil.export.cleanlab_issues import cleanlab_issues, save_cleanlab
from pencil.export.dataset_folder import save_hugging_face
from pencil.export.labels import LABEL_FORMATS, save_labels, select_entries, select_labels, write_labels

__all__ = [
    "LABEL_FORMATS",
    "cleanlab_issues",
    "save_cleanlab",
    "save_hugging_face",
    "save_labels",
    "save_maps",
    "select_entries",
    "select_labels",
    "write_labels",
]
