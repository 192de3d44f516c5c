import { expect, test } from "vitest";
import { editableText } from "../src/panels/Files";
import { inOrder } from "../src/views/Family";

function relative(id: string, parent_id: string | null) {
  const rest = { started_at: "", ended_at: null, reason: "", last_outcome: null, cells: 0, owner: "" };
  return { id, parent_id, state: "running" as const, ...rest };
}

test("a family is a tree, also where a parent is not known or names itself", () => {
  const items = [relative("b", "a"), relative("c", "b"), relative("a", "gone"), relative("d", "a")];
  const placed = inOrder(items).map((each) => `${each.depth}${each.relative.id}`);
  expect(placed).toEqual(["0a", "1b", "2c", "1d"]);
  expect(inOrder([relative("x", "x")])).toEqual([]);
});

test("only text whose bytes a field gives back can be edited", () => {
  const of = (...bytes: number[]) => editableText(new Uint8Array(bytes));
  expect(of(97, 10, 98)).toEqual({ lines: "a\nb", ending: "\n" });
  expect(of(97, 13, 10, 98)).toEqual({ lines: "a\nb", ending: "\r\n" });
  expect(of()).toEqual({ lines: "", ending: "\n" });
  for (const bytes of [[255], [0], [97, 13], [97, 10, 98, 13, 10]]) expect(of(...bytes)).toBeNull();
});
