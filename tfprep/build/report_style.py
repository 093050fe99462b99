"""The style sheet of `report.html`: light, and dark where the reader's system is."""

STYLE = """
:root{color-scheme:light dark;--paper:#fff;--ink:#1c2024;--faint:#6b7280;--line:#e3e6ea;--panel:#f6f7f9;
--s0:#2f6fde;--s1:#e08a1e;--s2:#2e9e6b;--s3:#a855c7}
@media(prefers-color-scheme:dark){:root{--paper:#15181c;--ink:#e6e8eb;--faint:#9aa3ad;--line:#2c3238;--panel:#1d2126;
--s0:#6ea0ff;--s1:#f0a84a;--s2:#54c492;--s3:#c98ae6}}
*{box-sizing:border-box}
body{margin:0;background:var(--paper);color:var(--ink);font:15px/1.5 system-ui,sans-serif}
main{max-width:1080px;margin:0 auto;padding:24px 20px 60px}
h1{font-size:24px;margin:8px 0 20px}
h2{font-size:18px;margin:36px 0 10px;border-bottom:1px solid var(--line);padding-bottom:6px}
h3{font-size:15px;margin:18px 0 6px}
h3 small{color:var(--faint);font-weight:400}
.tiles{display:flex;flex-wrap:wrap;gap:10px}
.tile{background:var(--panel);border-radius:8px;padding:12px 18px;min-width:120px}
.tile b{display:block;font-size:22px;font-variant-numeric:tabular-nums}
.tile span,footer{color:var(--faint);font-size:13px}
.wide{overflow-x:auto;margin-bottom:14px}
.wide img{display:block;max-width:none;border-radius:4px}
table{border-collapse:collapse}
th,td{text-align:left;padding:4px 14px 4px 0;border-bottom:1px solid var(--line);white-space:nowrap}
th{color:var(--faint);font-weight:500;font-size:13px}
.n{text-align:right;font-variant-numeric:tabular-nums}
.bar{width:320px;min-width:200px}
.bar i{display:inline-block;height:11px;min-width:0;vertical-align:middle}
.key{display:inline-block;width:9px;height:9px;margin-right:5px;border-radius:2px}
.s0{background:var(--s0)}.s1{background:var(--s1)}.s2{background:var(--s2)}.s3{background:var(--s3)}
.group{background:var(--panel);border-radius:8px;padding:4px 16px 10px;margin:12px 0;overflow-wrap:anywhere}
.group ul{margin:6px 0 0;padding-left:20px;font-size:13px}
.stage{background:var(--line);border-radius:4px;padding:1px 7px;font-size:12px;font-weight:500;margin:0 4px}
.pictures{display:flex;flex-wrap:wrap;gap:8px}
figure{margin:0;width:104px}
figure img{display:block;max-width:96px;max-height:96px;border-radius:4px}
figcaption{font-size:11px;color:var(--faint);overflow-wrap:anywhere}
code{font:13px ui-monospace,monospace}
footer{margin-top:40px}
"""
