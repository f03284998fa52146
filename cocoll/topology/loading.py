"""A topology from what a user names: a file or a preset."""

from __future__ import annotations

import os
from pathlib import Path

from cocoll.errors import TopologyError
from cocoll.topology.graph import Topology
from cocoll.topology.presets import PRESETS, load_preset

__all__ = ["load_topology"]


def load_topology(spec: str | os.PathLike[str]) -> Topology:
    """Read a topology file, or make a preset.

    Parameters
    ----------
    spec : str or path-like
        ``"cluster.json"``, or ``"dgx-h100:4"``. What has the name of a preset is one; a file of
        that name is read as ``"./dgx-h100"``.

    Returns
    -------
    Topology
        Checked.

    Raises
    ------
    TopologyError
        There is no such file or preset, or the file holds no topology; the message names the line
        and the field.
    """
    text = os.fspath(spec)
    if isinstance(spec, str) and text.partition(":")[0] in PRESETS:
        return load_preset(text)
    path = Path(text).expanduser()
    try:
        content = path.read_text(encoding="utf-8-sig")
    except FileNotFoundError:
        known = ", ".join(f"{name}:N" for name in PRESETS)
        raise TopologyError(
            f"wanted a topology file or a preset ({known}); there is no file {text}"
        ) from None
    except OSError as error:
        raise TopologyError(f"the topology file {text} cannot be read: {error.strerror}") from None
    except UnicodeDecodeError:
        raise TopologyError(f"the topology file {text} is no text in UTF-8") from None
    return Topology.from_json(content, text)
