"""The style of pages and charts. One colour has one meaning, in light and dark; contrast of letters is at least 5."""

from typing import Final

_LIGHT: Final = {
    "ground": "#f3f5f3", "card": "#ffffff", "edge": "#d8dfda", "text": "#15201b", "second": "#53615a",
    "saved": "#0b7357", "power": "#1d5fb8", "grid": "#8a5a00", "prior": "#5f6d66", "now": "#a3215c",
    "warning": "#8f4700", "error": "#b3261e", "pinned": "#6a3fa0",
}  # fmt: skip
_DARK: Final = {
    "ground": "#0f1512", "card": "#18201c", "edge": "#34403a", "text": "#e9f0ec", "second": "#a5b3ab",
    "saved": "#55cda4", "power": "#83b4ff", "grid": "#e6b65c", "prior": "#95a39b", "now": "#ff86b8",
    "warning": "#ffb765", "error": "#ff9a90", "pinned": "#c9a5ff",
}  # fmt: skip


def _variables(colours: dict[str, str]) -> str:
    return ";".join(f"--{name}:{colour}" for name, colour in colours.items())


COLOURS: Final = "\n".join([
    f":root{{color-scheme:light dark;{_variables(_LIGHT)}}}",
    f"@media (prefers-color-scheme:dark){{:root{{{_variables(_DARK)}}}}}",
    f"@media print{{:root{{{_variables(_LIGHT)};--ground:#fff}}}}",
    *(f".c-{name}{{--c:var(--{name})}}" for name in _LIGHT),
])  # fmt: skip
"""The colours, by what they stand for, as the browser prefers."""
THEMES: Final = "\n".join([
    "@media not print{",
    f":root[data-theme=light]{{color-scheme:light;{_variables(_LIGHT)}}}",
    f":root[data-theme=dark]{{color-scheme:dark;{_variables(_DARK)}}}",
    "}",
])  # fmt: skip
"""The colours as the reader has chosen, where a page lets them."""

CHARTS: Final = """
.plot,.plot svg{overflow:visible}
.plot svg[viewBox]{overflow:hidden}
.plot text{font-size:.8em;fill:var(--c,var(--second));unicode-bidi:isolate}
.plot .end{text-anchor:end}.plot .middle{text-anchor:middle}.plot .strong{font-weight:600}
.gridline{stroke:var(--edge)}.gridline.zero{stroke:var(--second)}
.line,.rule,.whisker,.stroke,.ring{stroke:var(--c);fill:none}
.line{stroke-width:2;stroke-linejoin:round}.rule{stroke-width:1.5}.whisker{stroke-width:1.3}
.stroke{stroke-width:2}.ring{stroke-width:2.5}circle{fill:var(--c)}
.band,.tint{fill:var(--c)}.band{fill-opacity:.2}.tint{fill-opacity:.14}
.bar{fill:var(--c)}.bar.tinted{fill-opacity:.2;stroke:var(--c)}
@media (forced-colors:active){.plot,.swatch{forced-color-adjust:none}.plot text{fill:CanvasText}
.gridline{stroke:CanvasText;stroke-opacity:.25}.gridline.zero{stroke-opacity:1}}
"""
"""What is in a chart's SVG."""

FIGURES: Final = """
.chart{container-type:inline-size;margin:1.5rem 0;break-inside:avoid}
.chart figcaption h2{margin:0}.chart figcaption p{margin:.1rem 0 .6rem;color:var(--second)}
.chart .unit{margin:.4rem 0 .5rem;font-size:.8rem;color:var(--second)}
.panels{padding:0 .8rem 1.6rem 3.6rem}.panels .unit{margin-left:-3.6rem}
.panels .raised{margin-bottom:1.6rem}
.plot{display:block;width:100%;font-size:1rem}
.key{list-style:none;display:flex;flex-wrap:wrap;gap:.1rem 1.2rem;margin:0;padding:0;font-size:.85rem}
.key .beside,.plot .beside{display:none}
.key .beside{display:inline}
.swatch{width:1.8em;height:.9em;margin-right:.4em;overflow:visible;vertical-align:-.05em}
.plot .wide{display:none}
.x-label{margin:-.2rem 0 .4rem;text-align:center;font-size:.8rem;color:var(--second)}
@container (min-width:34rem){
.plot .wide{display:inline}.plot .beside{display:inline}.key .beside{display:none}
.beside-5 .panels{padding-right:5.5rem}.beside-8 .panels{padding-right:8.5rem}.beside-12 .panels{padding-right:12.5rem}
}
details{margin:.4rem 0}summary{cursor:pointer;color:var(--power)}
"""
"""Charts in a page."""

TABLES: Final = """
bdi,td,th{unicode-bidi:isolate}
.scroll{overflow-x:auto;position:relative}table{border-collapse:collapse;width:100%;font-variant-numeric:tabular-nums}
th,td{text-align:right;padding:.25rem .6rem;border-bottom:1px solid var(--edge);vertical-align:top}
th{font-weight:600;color:var(--second);font-size:.87rem}.name{text-align:left}
td.name{overflow-wrap:anywhere;min-width:6em}tr.sum td{font-weight:600}
@media (max-width:640px){
table,tbody,tr,td{display:block}thead{position:absolute;width:1px;height:1px;overflow:hidden;clip-path:inset(50%)}
tr{padding:.4rem 0;border-bottom:1px solid var(--edge)}
td{display:flex;justify-content:space-between;gap:1rem;border:0;padding:.05rem 0;
text-align:right;overflow-wrap:anywhere}
td::before{flex:none;max-width:60%;content:attr(data-label);color:var(--second);text-align:left}td.name:first-child{font-weight:600}td:empty{display:none}}
@media print{tr{break-inside:avoid}table{font-size:7.5pt;line-height:1.3}th,td{padding:.06rem .3rem}}
"""
"""Tables, which are lists of labelled values on a phone."""

DOCUMENT: Final = """
:root{font:clamp(15px,.5vw + 9.6px,21px)/1.5 system-ui,sans-serif}
body{margin:0;background:var(--ground);color:var(--text)}
main{max-width:60rem;margin:1rem auto;padding:1rem 1.4rem;background:var(--card);
border:1px solid var(--edge);border-radius:.6rem}
h1{font-size:1.6rem;line-height:1.25;margin:.2rem 0 .8rem}h2{font-size:1.1rem;margin:1.6rem 0 .4rem}
.note{color:var(--second);font-size:.87rem}code{overflow-wrap:anywhere}
h1,h2,p,li{overflow-wrap:anywhere}
tr.faint td{color:var(--prior)}tr.next td{background:color-mix(in srgb,var(--power) 12%,transparent)}
p.next{border-left:4px solid var(--power);padding:.4rem 1rem}
@media (max-width:640px){main{margin:0;border:0;border-radius:0;padding:.8rem}}
@media print{@page{margin:12mm}:root{font-size:9pt;line-height:1.35}
main{border:0;padding:0;margin:0;max-width:none}details{display:none}
.chart{margin:.6rem 0}h2{margin:.8rem 0 .3rem}h2,thead,p:has(+.scroll){break-after:avoid}
p,ul{margin:.4rem 0}li,.note{font-size:8pt}}
"""
"""The rest of a page that is one file: headings and text."""
