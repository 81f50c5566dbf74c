"""A file of weights in parts that are small enough to be carried one by one, and put together where all of them are.

    python benchmarks/gpu/weights.py cut FILE.gguf    four parts below 25 MiB each and `digests.json`, in weights/
    python benchmarks/gpu/weights.py join             checks the parts and puts them together, beside them

`find` is what `run.py` asks: the whole file where it is there or can be put together, else None, and why. Parts that
lie in several folders are found in all of them. The standard library only.
"""

from __future__ import annotations

import argparse
import hashlib
import json
from collections.abc import Sequence
from pathlib import Path

PARTS = 4
LIMIT = 25 * 2**20  # bytes of a part
DIGESTS = "digests.json"
FOLDER = Path(__file__).resolve().parent / "weights"


def digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def cut(file: Path, folder: Path = FOLDER, parts: int = PARTS) -> list[Path]:
    """Write the parts of a file and their digests. ValueError for one whose parts would be too large."""
    data = file.read_bytes()
    size = -(-len(data) // parts)
    if not data or size > LIMIT:
        raise ValueError(f"{file} has {len(data):,} bytes: expected 1 to {parts * LIMIT:,}, for {parts} parts")
    folder.mkdir(parents=True, exist_ok=True)
    made: dict[str, str] = {}
    for i in range(parts):
        piece = data[i * size : (i + 1) * size]
        name = f"{file.name}.part{i + 1}of{parts}"
        (folder / name).write_bytes(piece)
        made[name] = digest(piece)
    about = {"file": file.name, "bytes": len(data), "sha256": digest(data), "parts": made}
    (folder / DIGESTS).write_text(json.dumps(about, indent=1) + "\n")
    return [folder / name for name in made]


def find(folders: Sequence[Path] = (FOLDER,), to: Path | None = None) -> tuple[Path | None, str]:
    """(the whole file, "") where it is there already or all parts are, which then are put together in `to` (default:
    the folder of the digests); else (None, what is missing). ValueError for a part that is not as it was cut."""
    listing = next((f / DIGESTS for f in folders if (f / DIGESTS).is_file()), None)
    if listing is None:
        return None, f"no {DIGESTS} in {', '.join(map(str, folders))}"
    about = json.loads(listing.read_text())
    places = [*folders, *([] if to is None else [to])]
    for place in places:
        whole = place / about["file"]
        if whole.is_file() and whole.stat().st_size == about["bytes"] and digest(whole.read_bytes()) == about["sha256"]:
            return whole, ""
    found = {name: next((f / name for f in folders if (f / name).is_file()), None) for name in about["parts"]}
    missing = [name for name, path in found.items() if path is None]
    if missing:
        return None, f"{len(missing)} of {len(found)} parts are missing: {', '.join(missing)}"
    data = b""
    for name, path in found.items():
        piece = path.read_bytes() if path is not None else b""
        if digest(piece) != about["parts"][name]:
            raise ValueError(f"{path} is not as it was cut: its digest differs")
        data += piece
    if digest(data) != about["sha256"]:
        raise ValueError(f"the parts of {about['file']} make another file than was cut: their order differs")
    whole = (to or listing.parent) / about["file"]
    whole.parent.mkdir(parents=True, exist_ok=True)
    whole.write_bytes(data)
    return whole, ""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("cut", "join"))
    parser.add_argument("file", type=Path, nargs="?")
    parser.add_argument("--folder", type=Path, default=FOLDER)
    args = parser.parse_args()
    if args.what == "cut":
        if args.file is None:
            parser.error("cut: which file?")
        for part in cut(args.file, args.folder):
            print(f"{part.stat().st_size / 2**20:6.2f} MiB  {part}")
        return
    whole, why = find((args.folder,))
    print(whole or why)
    raise SystemExit(whole is None)


if __name__ == "__main__":
    main()
