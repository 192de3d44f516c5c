"""pandas reads and writes files, groups, joins and resamples."""

import sqlite3

import pandas as pd

frame = pd.DataFrame(
    {"when": pd.date_range("2024-01-01", periods=96, freq="h", tz="Europe/Berlin"), "value": range(96)}
)
frame["day"] = frame["when"].dt.day_name()
totals = frame.groupby("day", sort=False)["value"].sum()
assert totals["Tuesday"] == sum(range(24, 48)), totals
assert len(frame.set_index("when")["value"].resample("D").mean()) == 4

frame.to_csv("/tmp/frame.csv.gz", index=False)
again = pd.read_csv("/tmp/frame.csv.gz", parse_dates=["when"])
assert again["value"].equals(frame["value"])
assert len(again.merge(totals.rename("total").reset_index(), on="day")) == 96

frame.to_pickle("/tmp/frame.pickle")
assert pd.read_pickle("/tmp/frame.pickle").equals(frame)

with sqlite3.connect(":memory:") as connection:
    frame[["value", "day"]].to_sql("frame", connection, index=False)
    assert pd.read_sql("select count(*) as n from frame", connection)["n"][0] == 96

print("works")
