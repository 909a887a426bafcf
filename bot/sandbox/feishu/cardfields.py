"""Card JSON 2.0 as data: which fields each component knows. Unknown fields refuse the whole card (feishu.md §5.6).

Only names live here; the checks are in cardschema.py. `None` stands for a component whose fields are not looked at.
"""

from __future__ import annotations

from collections.abc import Mapping

TOP = frozenset({"schema", "config", "card_link", "header", "body"})
CONFIG = frozenset({
    "streaming_mode", "streaming_config", "summary", "locales", "enable_forward", "update_multi", "width_mode",
    "use_custom_translation", "enable_forward_interaction", "style",
})  # fmt: skip
SUMMARY = frozenset({"content", "i18n_content"})
STREAMING_CONFIG = frozenset({"print_frequency_ms", "print_step", "print_strategy"})
CLIENTS = frozenset({"default", "android", "ios", "pc"})
STRATEGIES = frozenset({"fast", "delay"})
HEADER = frozenset({
    "title", "subtitle", "text_tag_list", "i18n_text_tag_list", "template", "icon", "padding",
})  # fmt: skip
BODY = frozenset({
    "elements", "direction", "padding", "horizontal_spacing", "horizontal_align", "vertical_spacing", "vertical_align",
})  # fmt: skip

_COMMON = frozenset({"tag", "element_id", "margin"})
_SPACE = frozenset({
    "direction", "padding", "horizontal_spacing", "horizontal_align", "vertical_spacing", "vertical_align",
})  # fmt: skip
_TEXT = frozenset({
    "tag", "element_id", "content", "i18n_content", "text_size", "text_color", "text_align", "lines",
})  # fmt: skip

COMPONENTS: Mapping[str, frozenset[str] | None] = {
    "markdown": _COMMON | {"content", "i18n_content", "text_align", "text_size", "icon"},
    "div": _COMMON | {"text", "icon", "width", "fields"},
    "plain_text": _TEXT,
    "lark_md": _TEXT,
    "hr": _COMMON,
    "img": _COMMON | {
        "img_key", "alt", "title", "corner_radius", "scale_type", "size", "transparent", "preview",
    },
    "button": _COMMON | {
        "type", "size", "width", "text", "icon", "hover_tips", "disabled", "disabled_tips", "confirm", "behaviors",
        "name", "required", "form_action_type",
    },
    "column_set": _COMMON | _SPACE | {"columns", "flex_mode", "background_style", "action"},
    "column": _COMMON | _SPACE | {"elements", "width", "weight", "background_style", "action"},
    "collapsible_panel": _COMMON | _SPACE | {"header", "expanded", "border", "background_color", "elements"},
    "interactive_container": _COMMON | _SPACE | {
        "elements", "behaviors", "width", "height", "background_style", "has_border", "border_color", "corner_radius",
        "hover_tips", "disabled", "disabled_tips", "confirm",
    },
    "form": _COMMON | _SPACE | {"name", "elements"},
    "table": _COMMON | {
        "page_size", "row_height", "row_max_height", "freeze_first_column", "header_style", "columns", "rows",
    },
    "text_tag": frozenset({"tag", "element_id", "text", "color"}),
    "standard_icon": frozenset({"tag", "token", "color", "size"}),
    "custom_icon": frozenset({"tag", "img_key", "size"}),
    "person": None, "person_list": None, "chart": None, "audio": None, "input": None, "select_static": None,
    "multi_select_static": None, "select_person": None, "multi_select_person": None, "overflow": None,
    "date_picker": None, "picker_time": None, "picker_datetime": None, "checker": None, "img_combination": None,
    "select_img": None, "option": None,
}  # fmt: skip

CONTAINERS = frozenset(
    {"column_set", "column", "collapsible_panel", "interactive_container", "form"}
)
NEEDED: Mapping[str, tuple[str, ...]] = {
    "markdown": ("content",),
    "plain_text": ("content",),
    "lark_md": ("content",),
    "div": ("text",),
    "img": ("img_key", "alt"),
    "column_set": ("columns",),
    "table": ("columns", "rows"),
}
BUTTON_TYPES = frozenset({
    "default", "primary", "danger", "text", "primary_text", "danger_text", "primary_filled", "danger_filled", "laser",
})  # fmt: skip
BEHAVIORS = frozenset({"callback", "open_url"})
