import { describe, expect, it } from "vitest";
import { sandboxAt } from "../src/api/queries";

describe("the address of a sandbox", () => {
  it("is read as it was written, and what cannot be read is none", () => {
    expect(sandboxAt("/console/sandboxes/a%20b")).toBe("a b");
    expect(sandboxAt("/console/sandboxes/%")).toBeNull();
    expect(sandboxAt("/console/sandboxes/abc/compare")).toBeNull();
    expect(sandboxAt("/console/records/abc")).toBeNull();
  });
});
