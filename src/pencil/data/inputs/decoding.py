"""Decoding single images: bytes in, an upright 8-bit RGB image out, or the reason for the failure."""

import io
import struct
import warnings
import zlib

import numpy as np
from PIL import ExifTags, Image, ImageOps, UnidentifiedImageError

from pencil.data.inputs.base import MAX_PIXELS, Size
from pencil.errors import reason_of

FORMATS = ("JPEG", "PNG", "BMP", "GIF", "WEBP", "TIFF", "PPM")  # none of these starts another program

DECODE_FAULTS = (OSError, ValueError, SyntaxError, EOFError, struct.error, zlib.error, Image.DecompressionBombError)
"""Errors that Pillow raises for bytes that are not an image, or are a truncated one."""


def open_image(content: bytes, max_pixels: int = MAX_PIXELS) -> Image.Image:
    """Open the image in these bytes and check its number of pixels; nothing is decoded yet."""
    if not content:
        raise ValueError("the file is empty")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # about damaged tags and many pixels, because we have our own limit
        try:
            image = Image.open(io.BytesIO(content), formats=FORMATS)
        except Image.DecompressionBombError as error:
            raise ValueError(
                f"it would have more pixels than Pillow accepts; expected at most {max_pixels:,} (data.max_pixels)"
            ) from error
    if image.width * image.height > max_pixels:
        raise ValueError(
            f"it would have {image.width} x {image.height} pixels; expected at most {max_pixels:,} (data.max_pixels)"
        )
    return image


def upright_size(image: Image.Image) -> Size:
    """Return height and width after the EXIF rotation."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # damaged EXIF blocks are harmless
        on_its_side = image.getexif().get(ExifTags.Base.Orientation, 1) in (5, 6, 7, 8)
    return (image.width, image.height) if on_its_side else (image.height, image.width)


def decode(
    content: bytes, size: Size | None = None, max_pixels: int = MAX_PIXELS, side: int | None = None
) -> np.ndarray:
    """Decode an image to 8-bit RGB of shape (height, width, 3), resized to ``size``; too many pixels are a ValueError.

    A large JPEG may be decoded at a fraction of its size, at least ``side`` pixels; by default limited by ``size``.
    """
    image = decode_image(content, max_pixels, max(size) if size is not None else side)
    if size is not None and (image.height, image.width) != size:
        image = image.resize((size[1], size[0]), Image.Resampling.BILINEAR)
    return np.array(image)


def decode_image(content: bytes, max_pixels: int = MAX_PIXELS, side: int | None = None) -> Image.Image:
    """Decode an image to upright 8-bit RGB; a large JPEG may be decoded at a fraction, at least ``side`` pixels."""
    image = open_image(content, max_pixels)
    if side is not None:
        image.draft("RGB", (side, side))  # a JPEG is decoded at a half, quarter or eighth of its size if that suffices
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # damaged EXIF blocks are harmless
        return to_rgb(ImageOps.exif_transpose(image))


def to_rgb(image: Image.Image) -> Image.Image:
    """Convert any mode to RGB: the upper byte of 16-bit values, transparency over white."""
    if image.mode == "RGB":
        return image
    if image.mode.startswith("I"):
        values = np.asarray(image).astype(np.int64)
        return Image.fromarray((values.clip(0, 65535) // 256).astype(np.uint8)).convert("RGB")
    if image.mode == "F":
        raise ValueError("its pixels are floating-point numbers of unknown range; save it with 8 or 16 bits")
    if image.mode in ("RGBA", "LA", "PA", "RGBa", "La") or "transparency" in image.info:
        layer = image.convert("RGBA")
        return Image.alpha_composite(Image.new("RGBA", layer.size, "white"), layer).convert("RGB")
    return image.convert("RGB")


def describe_fault(error: Exception) -> str:
    """Return a decoder's error as one phrase, without buffer addresses."""
    if isinstance(error, UnidentifiedImageError):
        return "it is not an image that Pillow can read"
    return error.strerror.lower() if isinstance(error, OSError) and error.strerror else reason_of(error)
