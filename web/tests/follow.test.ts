import { expect, test } from "vitest";
import { follows } from "../src/parts/follow";

const pane = (scrollTop: number, scrollHeight: number) => ({ scrollTop, clientHeight: 100, scrollHeight });

test("content that grows before the scroll event arrives does not end following", () => {
  expect(follows(true, 900, pane(900, 5000), 19)).toBe(true);
  expect(follows(true, 900, pane(1900, 5000), 19)).toBe(true);
});

test("a viewer who scrolls up ends it, and begins it again at the end", () => {
  expect(follows(true, 900, pane(885, 1000), 19)).toBe(true);
  expect(follows(true, 900, pane(700, 1000), 19)).toBe(false);
  expect(follows(false, 700, pane(800, 1000), 19)).toBe(false);
  expect(follows(false, 700, pane(890, 1000), 19)).toBe(true);
});
