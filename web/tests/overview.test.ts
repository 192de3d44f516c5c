import { describe, expect, it } from "vitest";
import type { Cell, Execution, Sandbox } from "../src/api/types";
import { answerOf, firstOwn, forksOf, ownForks } from "../src/views/Branches";
import { type Capacity, concernsOf, hasQuotas, hoursOf, type Key } from "../src/views/Overview";

const HOST: Capacity = {
  sandboxes: 3,
  max_sandboxes: 100,
  memory_available_bytes: 50,
  memory_total_bytes: 100,
  cpu_cores: 2,
  load: 0.5,
  pool_ready: 1,
  is_draining: false,
  cold_reason: "",
};
const BOX = {
  id: "box",
  limits: { memory_bytes: 100 },
  isolation: { level: "full", layers: [{ name: "seccomp", state: "on", why: "" }] },
  pause: null,
  use: { memory_bytes: 10 },
} as unknown as Sandbox;
const KEY: Key = { id: "ab12", name: "blue", revoked_at: null, policy: {} };

describe("what needs eyes", () => {
  it("is nothing while all is well", () => {
    const use = { executions_today: { used: 10, maximum: 100 }, sandboxes: { used: 5, maximum: null } };
    expect(concernsOf(HOST, [BOX], new Map([[KEY, use]]))).toEqual([]);
    expect(concernsOf(undefined, [], new Map([[KEY, undefined]]))).toEqual([]);
  });
  it("is a full host, a sandbox at a limit, paused or less held, and a key near its quota", () => {
    const host = { ...HOST, is_draining: true, sandboxes: 95, memory_available_bytes: 5 };
    const box = {
      ...BOX,
      state: "paused",
      use: { memory_bytes: 95 },
      isolation: { level: "x", layers: [{ name: "landlock", state: "degraded", why: "" }] },
    } as unknown as Sandbox;
    const use = { executions_today: { used: 91, maximum: 100 } };
    const found = concernsOf(host, [box], new Map([[KEY, use]]));
    expect(found.map((each) => each.key)).toEqual([
      "draining",
      "full",
      "memory",
      "box paused",
      "box memory",
      "box isolation",
      "ab12 executions_today",
    ]);
    expect(found.at(-1)?.words).toContain("91 of 100");
  });
});

describe("the use of a key", () => {
  it("is asked for where the key has a quota", () => {
    const policy: Key["policy"] = {
      max_sandboxes: null,
      executions_per_day: null,
      max_network: "none",
      max_limits: {},
    };
    expect(hasQuotas({ ...KEY, policy })).toBe(false);
    const bounded = { ...KEY, policy: { ...policy, executions_per_day: 0 } };
    expect(hasQuotas(bounded)).toBe(true);
    expect(hasQuotas({ ...bounded, revoked_at: "2026-11-26T09:00:00Z" })).toBe(false);
  });
});

describe("hours", () => {
  it("are summed over keys, failed ones apart", () => {
    const at = "2026-11-26T09:00:00Z";
    const items = [
      { start: at, executions: 3, errors: 1 },
      { start: at, executions: 2, errors: 0 },
    ];
    expect(hoursOf(items)).toEqual([
      { label: "09:00", group: "ok", value: 4 },
      { label: "09:00", group: "failed", value: 1 },
    ]);
  });
});

describe("ways", () => {
  it("are bounded in number, however long the address is", () => {
    expect(forksOf(null)).toEqual([]);
    expect(forksOf(Array(50).fill("a").join(","))).toHaveLength(8);
  });
  it("are forks of this sandbox alone, whatever an address says", () => {
    const listed = [{ id: "a" }, { id: "b" }] as Sandbox[];
    expect(ownForks(["b", "another", "a"], listed)).toEqual(["b", "a"]);
  });
  it("show the first cell of their own", () => {
    const cells = [
      { id: "parent", started_at: "2026-11-26T09:00:00Z" },
      { id: "own", started_at: "2026-11-26T09:00:02Z" },
      { id: "later", started_at: "2026-11-26T09:00:03Z" },
    ] as Cell[];
    expect(firstOwn(cells, "2026-11-26T09:00:01Z")?.id).toBe("own");
    expect(firstOwn(cells.slice(0, 1), "2026-11-26T09:00:01Z")).toBeNull();
  });
  it("answer with the value, or with why there is none", () => {
    const value = { error: null, results: [{ is_main_result: true, text: "42" }] } as unknown as Execution;
    const failed = { error: { name: "NameError", value: "x" }, results: [] } as unknown as Execution;
    expect(answerOf({ status: "fulfilled", value })).toEqual({ text: "42", isError: false });
    expect(answerOf({ status: "fulfilled", value: failed }).text).toBe("NameError: x");
    expect(answerOf({ status: "rejected", reason: new Error("no") }).isError).toBe(true);
  });
});
