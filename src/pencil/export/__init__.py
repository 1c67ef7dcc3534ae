"""What other programs read: labels as tables, for cleanlab and datasets, as sorted images; class maps."""

from pencil.export.cleanlab_issues import cleanlab_issues, save_cleanlab
from pencil.export.hugging_face import save_hugging_face
from pencil.export.image_tree import Sorted, sort_images
from pencil.export.label_files import LABEL_FORMATS, new_file, save_labels, save_maps, write_labels
from pencil.export.label_rows import choose_entries, choose_labels
from pencil.export.table_columns import with_columns

__all__ = [
    "LABEL_FORMATS",
    "Sorted",
    "choose_entries",
    "choose_labels",
    "cleanlab_issues",
    "new_file",
    "save_cleanlab",
    "save_hugging_face",
    "save_labels",
    "save_maps",
    "sort_images",
    "with_columns",
    "write_labels",
]
