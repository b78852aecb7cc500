"""The report of a run: one HTML file with fields, errors, animations, curves and the numbers, readable offline."""

from ups.report.contents import Curve, Report, Sample, SolverComparison, SolverRow, SummaryRow, TaskPage
from ups.report.html import write_report
from ups.report.legend import Legend
from ups.report.verdict import summary_rows

__all__ = [
    "Curve",
    "Legend",
    "Report",
    "Sample",
    "SolverComparison",
    "SolverRow",
    "SummaryRow",
    "TaskPage",
    "summary_rows",
    "write_report",
]
