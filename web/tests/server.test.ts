import { describe, expect, it } from "vitest";
import { chosenOf, type Setting } from "../src/views/Server";

const PORT: Setting = {
  name: "port",
  group: "address and access",
  help: "port to listen on",
  value: "8765",
  source: "flag",
  origin: "--port",
};
const HOST: Setting = { ...PORT, name: "host", help: "Address to listen on", source: "default", origin: "" };

describe("settings", () => {
  it("are found by name and purpose, whatever the case", () => {
    expect(chosenOf([PORT, HOST], " LISTEN ", false)).toEqual([PORT, HOST]);
    expect(chosenOf([PORT, HOST], "address", false)).toEqual([HOST]);
    expect(chosenOf([PORT, HOST], "nothing", false)).toEqual([]);
  });
  it("that were given can be seen alone", () => {
    expect(chosenOf([PORT, HOST], "", true)).toEqual([PORT]);
  });
});
