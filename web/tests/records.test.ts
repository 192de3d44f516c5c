import { describe, expect, it } from "vitest";
import { changesOf } from "../src/views/Labels";
import { said } from "../src/views/Replay";

describe("what a replay says at its end", () => {
  const sums = {
    type: "replayed" as const,
    cells: 3,
    same: 3,
    first_difference: null,
    dropped_cells: 0,
    not_fixed: [],
  };
  it("names the first cell that differs, and what is missing", () => {
    expect(said(sums)).toBe("3 of 3 cells did the same.");
    expect(said({ ...sums, same: 2, first_difference: 2 })).toContain("Cell 2 is the first that differs");
    expect(said({ ...sums, dropped_cells: 4 })).toContain("4 older cells are not in the record.");
  });
});

describe("changed labels", () => {
  it("are what is new or different, and null for what is gone", () => {
    const was = { team: "blue", run: "1", step: "load" };
    const rows = [
      { name: "team", value: "blue" },
      { name: "run", value: "2" },
      { name: "note", value: "" },
      { name: "", value: "nothing" },
    ];
    expect(changesOf(was, rows)).toEqual({ run: "2", note: "", step: null });
    expect(changesOf({ __proto__x: "1" }, [])).toEqual({ __proto__x: null });
  });
});
