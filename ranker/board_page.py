"""A board as one HTML page, with its tables and plots inside it."""

from __future__ import annotations

import base64
import html
import io
import math
from collections.abc import Sequence
from importlib import resources
from typing import TYPE_CHECKING

from ranker.board import DEPTHS, GRADED, Board
from ranker.core import metrics
from ranker.core.errors import missing_extra
from ranker.core.power import EFFECTS
from ranker.evaluate import COLORS, draw_composition
from ranker.size import BUDGET

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def cell(value: object, digits: int = 4) -> str:
    """Return a value as the text of a table cell; a dash where there is none."""
    if value is None or (isinstance(value, float) and math.isnan(value)):
        return "–"
    return html.escape(f"{value:.{digits}f}" if isinstance(value, float) else str(value))


def rows_to_html(header: Sequence[str], rows: Sequence[Sequence[object]], digits: int = 4) -> str:
    """Return a table."""
    head = "".join(f"<th>{html.escape(name)}</th>" for name in header)
    body = "".join(f"<tr>{''.join(f'<td>{cell(value, digits)}</td>' for value in row)}</tr>\n" for row in rows)
    return f"<table>\n<thead><tr>{head}</tr></thead>\n<tbody>\n{body}</tbody>\n</table>\n"


def _image(figure: Figure, alt: str) -> str:
    data = io.BytesIO()
    figure.savefig(data, format="png", dpi=120)
    return f'<img alt="{html.escape(alt)}" src="data:image/png;base64,{base64.b64encode(data.getvalue()).decode()}">\n'


def _new_figure(width: float, height: float) -> Figure:
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise missing_extra("matplotlib", "train") from error
    return Figure(figsize=(width, height), layout="constrained")


def _orders(board: Board) -> str:
    figure = _new_figure(6.5, 5)
    axes = figure.add_subplot()
    for system in board.systems:
        axes.scatter(system.binary, system.graded, color="tab:blue", zorder=3)
        axes.annotate(
            system.name, (system.binary, system.graded), xytext=(5, 4), textcoords="offset points", fontsize=8
        )
    axes.set(xlabel="binary: MAP of gold skills", ylabel=f"graded: {GRADED}")
    axes.grid(alpha=0.3)
    axes.margins(x=0.2, y=0.1)  # room for the names
    return _image(figure, "graded against binary score of each system")


def _windows(board: Board) -> str:
    figure = _new_figure(9, 1.4 + 0.4 * len(board.systems))
    draw_composition(figure, {system.name: system.composition for system in board.systems})
    return _image(figure, "grades in the window of each system")


def _sizes(board: Board) -> str:
    known = [(system, system.size) for system in board.systems if system.size is not None]
    if not known:
        return "<p>No size is known; give <code>--size NAME=BILLIONS</code>.</p>\n"
    figure = _new_figure(7, 4.5)
    axes = figure.add_subplot()
    for system, size in known:
        # A system without parameters has no place on a logarithmic axis; it is drawn at its left end.
        at = max(size, 0.005)
        axes.scatter(at, system.graded, color="tab:blue", zorder=3)
        axes.annotate(system.name, (at, system.graded), xytext=(5, 4), textcoords="offset points", fontsize=8)
    axes.axvline(BUDGET / 1e9, color="grey", linestyle=":", linewidth=1)
    axes.set(xscale="log", xlabel="billion parameters", ylabel=GRADED)
    axes.grid(alpha=0.3)
    return _image(figure, "size against score")


def _overview(board: Board) -> str:
    header = ["system", GRADED, "MAP gold", "grade 4 found", *(f"grade 0 in top {k}" for k in DEPTHS)]
    header += ["billion parameters", "queries missing"]
    rows = [
        [s.name, s.graded, s.binary, s.gold_recall, *(s.nonsense[k] for k in DEPTHS), s.size, s.missing]
        for s in board.systems
    ]
    by_task = [[s.name, *s.by_task.values()] for s in board.systems]
    tasks = [f"{task} ({n})" for task, n in board.tasks.items()]
    return rows_to_html(header, rows) + f"<p>{GRADED} by task, with its number of queries:</p>\n" + rows_to_html(
        ["system", *tasks], by_task
    )


def _order_table(board: Board) -> str:
    if not board.orders:
        return "<p>One system has no order.</p>\n"
    rows = [[name, order.systems, order.kendall, order.spearman] for name, order in board.orders.items()]
    return rows_to_html(["systems", "how many", "Kendall tau", "Spearman rho"], rows, 3)


def _duel_table(board: Board) -> str:
    header = ["first − second", "difference", "95 %", "p (Holm)", "detectable", "told apart?"]
    header += [f"more queries for {effect:g}" for effect in EFFECTS]
    rows = [
        (
            f"{duel.first} − {duel.second}",
            duel.found.difference,
            f"{duel.found.low:+.4f} to {duel.found.high:+.4f}",
            duel.adjusted_p,
            duel.found.minimum_detectable,
            "too close" if duel.too_close else "yes" if duel.adjusted_p < 0.05 else "no",
            *(duel.more_queries[effect] for effect in EFFECTS),
        )
        for duel in board.duels
    ]
    return rows_to_html(header, rows)


def _probes(board: Board) -> str:
    best = board.systems[0]
    share = board.prior / best.graded if best.graded > 0 else math.nan
    text = (
        "<p>An order of skills by their total gain over all other queries takes no notice of the query. It reaches "
        f"<b>{cell(board.prior)}</b>, {cell(share, 2)} of the first system's score.</p>\n"
    )
    if not board.overlap:
        return text + "<p>Shared words were not probed; give <code>--taxonomy</code>.</p>\n"
    rows = [[o.grade, o.pairs, o.label, o.any_label, o.stem] for o in board.overlap]
    header = ["grade", "judged pairs", "label verbatim", "label or alternative verbatim", "a content word shared"]
    hard = [[s.name, s.graded, s.hard, None if s.hard is None else s.hard - s.graded] for s in board.systems]
    return (
        f"{text}<p>How often the label of a judged skill shares words with the query:</p>\n"
        f"{rows_to_html(header, rows, 3)}"
        "<p>The score without the skills that share a content word with the query, in rankings and qrels alike. "
        "Rankings are not filled up again.</p>\n"
        f"{rows_to_html(['system', GRADED, 'without shared words', 'change'], hard)}"
    )


def page(board: Board) -> str:
    """Return the page: overview, orders, windows, differences and power, size, probes.

    Raises
    ------
    PrerequisiteError
        If matplotlib is not installed.
    """
    slots = [[s.name, *(s.composition[slot] for slot in COLORS)] for s in board.systems]
    names = [slot if slot == "holes" else f"grade {slot}" for slot in COLORS]
    sections = {
        "Systems": "<p>All figures are means over queries within a task, then over tasks.</p>\n" + _overview(board),
        "Graded and binary order": (
            "<p>Binary MAP knows gold skills alone. Where the orders differ, the systems differ in what they put into "
            f"the other slots.</p>\n{_orders(board)}{_order_table(board)}"
        ),
        "What the window holds": (
            f"<p>Mean slots of the top {metrics.WINDOW}; a hole is a skill that nobody judged.</p>\n"
            f"{_windows(board)}{rows_to_html(['system', *names], slots, 1)}"
        ),
        "Differences and power": (
            "<p>Neighbours on the board, compared by a paired bootstrap within tasks. <i>Detectable</i> is the "
            "smallest true difference that a test at 0.05 finds in 80 % of repetitions with these queries. A "
            "difference below it is <i>too close</i>: do not read it as an order.</p>\n" + _duel_table(board)
        ),
        "Size against score": _sizes(board),
        "Shortcuts": _probes(board),
    }
    body = "".join(f"<h2>{html.escape(title)}</h2>\n{content}" for title, content in sections.items())
    template = resources.files("ranker").joinpath("templates", "board.html").read_text(encoding="utf-8")
    return template.replace("__BODY__", body)
