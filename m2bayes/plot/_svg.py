"""SVG of a figure: values under the pointer, and the form that stands inside an HTML page."""

from __future__ import annotations

import re
from xml.etree import ElementTree

SVG, XLINK = "http://www.w3.org/2000/svg", "http://www.w3.org/1999/xlink"
HOVER = "hover "
REFERENCE = re.compile(r"url\(#")
ElementTree.register_namespace("", SVG)
ElementTree.register_namespace("xlink", XLINK)


def titled(text: str) -> str:
    """SVG in which every group that was named for its hover text has it as its title."""
    return ElementTree.tostring(_hovering(text), encoding="unicode", xml_declaration=True)


def inline(text: str, *, label: str, title: str, description: str) -> str:
    """SVG element for an HTML page: no namespaces, unique ids, a title and a description.

    Parameters
    ----------
    text : str
        What Matplotlib wrote, without hover texts.
    label : str
        Goes before every id, so that several figures stand on one page.
    title, description : str
        Of the figure, for those who do not see it.
    """
    root = _hovering(text)
    for node in root.iter():
        node.tag = node.tag.rpartition("}")[2]
        node.attrib.update(_attributes(node, label))
        for key in [k for k in node.attrib if k.startswith("{")]:
            del node.attrib[key]
    names = {"title": title, "desc": description}
    for i, (tag, said) in enumerate(names.items()):
        node = ElementTree.Element(tag, {"id": f"{label}-{tag}"})
        node.text = said
        root.insert(i, node)
    for key in ("width", "height", "version"):
        root.attrib.pop(key, None)
    root.attrib |= {"role": "img", "aria-labelledby": f"{label}-title {label}-desc"}
    return ElementTree.tostring(root, encoding="unicode", short_empty_elements=True)


def _attributes(node: ElementTree.Element, label: str) -> dict[str, str]:
    """Attributes of a node with this page's ids."""
    found = {}
    for key, value in node.attrib.items():
        if key == "id":
            found[key] = f"{label}-{value}"
        elif key == f"{{{XLINK}}}href":
            found["href"] = value.replace("#", f"#{label}-", 1)
        else:
            found[key] = REFERENCE.sub(f"url(#{label}-", value)
    return found


def _hovering(text: str) -> ElementTree.Element:
    """Root of an SVG without metadata, its hover texts turned into titles."""
    root = ElementTree.fromstring(text)
    for node in root.findall(f"{{{SVG}}}metadata"):
        root.remove(node)
    for node in root.iter():
        said = node.attrib.get("id", "")
        if said.startswith(HOVER):
            del node.attrib["id"]
            title = ElementTree.Element(f"{{{SVG}}}title")
            title.text = said.removeprefix(HOVER)
            node.insert(0, title)
    return root
