"""Image bytes to and from arrays, and the limits that protect against hostile files.

What is converted, and how:

- The EXIF orientation is applied (`as_stored` takes it back).
- Images become uint8 [H, W, 3] RGB (`decode_image`): grayscale is repeated, a palette is looked up, CMYK is converted as Pillow
  does it, transparency is laid over a color. 16 bits a channel are refused.
- Or they keep their own dtype and channels (`decode_pixels`).
- A color profile (ICC) inside the file changes no number, as in TensorFlow and torchvision.
- Masks keep their numbers: a palette image gives its indices, 1 bit gives 0 and 1, 16 bits stay uint16, and a TIFF whose 0 is
  white is not inverted.

A JPEG whose decoder warns, and a PNG with a wrong checksum, is decoded as far as it goes, and a warning is noted
(`decoder_warnings`). A setting of Pillow that a package has changed, and with which images decode to other pixels, ends the
build.

What is refused, with a SampleError: bytes that are not a whole image, several frames, more pixels than `MAX_PIXELS` or more
bytes of pixels than `MAX_BYTES`, a mask of several channels, formats that run programs or have no signature. A file of more than
`MAX_FILE_BYTES` is not read at all. Only the first image of a JPEG with several (MPO: a preview, the other eye) is read.

JPEG goes through simplejpeg (libjpeg-turbo, bit-identical to Pillow) and everything else through Pillow; PNG and PPM of 16 bits,
which Pillow would cut to 8, through OpenCV, and TIFF with its own numbers through tifffile. Decoding holds an image at most three
times: as the library decodes it, as the result, and once more while it is turned upright. A conversion in between works on
strips.
"""

from tfprep.images.decode import (
    HASH_BITS,
    decode_image,
    decode_map,
    decode_mask,
    image_size,
    keeps_original,
    perceptual_hash,
    stored_size,
)
from tfprep.images.jpeg_png import (
    as_stored,
    certain_to_decode,
    check_png_size,
    decode_png,
    decode_stored_jpeg,
    encode_jpeg,
    encode_png,
    exif_orientation,
)
from tfprep.images.numbers import decode_numbers, decode_pixels, file_orientation, header_text, is_dicom, pixels_size
from tfprep.images.pillow import (
    MAX_BYTES,
    MAX_FILE_BYTES,
    MAX_PIXELS,
    check_file_size,
    decoder_warnings,
    is_jpeg,
    pixel_limit,
    warn,
)

__all__ = [
    "HASH_BITS", "MAX_BYTES", "MAX_FILE_BYTES", "MAX_PIXELS", "as_stored", "certain_to_decode", "check_file_size",
    "check_png_size", "decode_image", "decode_map", "decode_mask", "decode_numbers", "decode_pixels", "decode_png",
    "decode_stored_jpeg", "decoder_warnings", "encode_jpeg", "encode_png", "exif_orientation", "file_orientation",
    "header_text", "image_size", "is_dicom", "is_jpeg", "keeps_original", "perceptual_hash", "pixel_limit",
    "pixels_size", "stored_size", "warn",
]  # fmt: skip
