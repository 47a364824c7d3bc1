"""The data set on disk, in one place to import from: what a file holds, its writer and its reader."""

from hpcrec.data.index import write_index
from hpcrec.data.layout import SCHEMA_VERSION, Column, Columns
from hpcrec.data.reader import DataSet
from hpcrec.preparation.writer import Writer

__all__ = ["SCHEMA_VERSION", "Column", "Columns", "DataSet", "Writer", "write_index"]
