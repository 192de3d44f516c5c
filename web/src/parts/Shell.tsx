/** What is around each view: a bar with the places one can go, the theme, and the login. */

import { useQueryClient } from "@tanstack/react-query";
import { DropdownMenu } from "radix-ui";
import { lazy, type ReactNode, Suspense, useEffect, useRef, useState } from "react";
import { Link, useLocation } from "wouter";
import { send } from "../api/client";
import type { Me } from "../api/types";
import logo from "../logo.svg";
import { visibleLine } from "./format";
import { isField } from "./hooks";
import { areLettersOn } from "./letters";
import { applyTheme, keptTheme, type Theme } from "./theme";

const Palette = lazy(() => import("./Palette").then((made) => ({ default: made.Palette })));
const KeyList = lazy(() => import("./Palette").then((made) => ({ default: made.KeyList })));
const THEMES: [Theme, string][] = [
  ["system", "As the system"],
  ["light", "Light"],
  ["dark", "Dark"],
];

export type Place = { path: string; name: string; scope: string; key: string };
// No key has it.
const OWNER = "owner";
// Either of two scopes.
const LOOK = "look";
const PLACES: Place[] = [
  { path: "/overview", name: "Overview", scope: "keys", key: "o" },
  { path: "/sandboxes", name: "Sandboxes", scope: LOOK, key: "s" },
  { path: "/records", name: "Records", scope: LOOK, key: "r" },
  { path: "/shares", name: "Shares", scope: "sandboxes", key: "h" },
  { path: "/usage", name: "Usage", scope: "", key: "u" },
  { path: "/queue", name: "Queue", scope: "keys", key: "q" },
  { path: "/keys", name: "Keys", scope: "keys", key: "k" },
  { path: "/server", name: "Server", scope: OWNER, key: "v" },
];

export function Shell({ me, children }: { me: Me; children: ReactNode }) {
  const [path, go] = useLocation();
  const places = PLACES.filter(
    (place) =>
      me.is_owner ||
      place.scope === "" ||
      me.scopes.includes(place.scope) ||
      (place.scope === LOOK && (me.scopes.includes("sandboxes") || me.scopes.includes("watch"))),
  );

  // On a narrow screen not all of them are seen.
  const nav = useRef<HTMLElement>(null);
  // biome-ignore lint/correctness/useExhaustiveDependencies: another view moves it
  useEffect(() => {
    nav.current?.querySelector("[aria-current]")?.scrollIntoView({ inline: "center", block: "nearest" });
  }, [path]);

  // `g` and a letter leads to a view.
  const isGoing = useRef(false);
  const [over, setOver] = useState<"palette" | "keys" | null>(null);
  useEffect(() => {
    const listen = (event: KeyboardEvent) => {
      if ((event.ctrlKey || event.metaKey) && !event.altKey && event.key === "k") {
        event.preventDefault();
        setOver("palette");
        return;
      }
      if (event.ctrlKey || event.metaKey || event.altKey || isField(event.target)) return;
      // The list of keys is where they are switched on again.
      if (event.key === "?") setOver("keys");
      if (!areLettersOn()) return;
      const place = isGoing.current ? places.find((each) => each.key === event.key) : undefined;
      isGoing.current = event.key === "g";
      if (!place) return;
      event.preventDefault();
      event.stopPropagation();
      go(place.path);
    };
    addEventListener("keydown", listen, { capture: true });
    return () => removeEventListener("keydown", listen, { capture: true });
  }, [places, go]);

  return (
    <>
      <a className="skip" href="#main">
        To the content
      </a>
      <header className="bar">
        <Link href="/" className="home" aria-label="fumehood">
          <img src={logo} alt="" width="24" height="24" />
          <span>fumehood</span>
        </Link>
        <nav aria-label="Views" ref={nav}>
          {places.map((place) => (
            <Link
              key={place.path}
              href={place.path}
              aria-current={
                path.startsWith(place.path) || (path === "/" && place.path === "/sandboxes")
                  ? "page"
                  : undefined
              }
            >
              {place.name}
            </Link>
          ))}
        </nav>
        <button
          type="button"
          className="subtle goto"
          title="Ctrl K"
          aria-label="Go to…"
          onClick={() => setOver("palette")}
        >
          <span>Go to…</span>
        </button>
        <AccountMenu me={me} openKeys={() => setOver("keys")} />
      </header>
      <Suspense>
        {over === "palette" && <Palette places={places} close={() => setOver(null)} />}
        {over === "keys" && <KeyList places={places} close={() => setOver(null)} />}
      </Suspense>
      <main id="main" tabIndex={-1}>
        {children}
      </main>
    </>
  );
}

export function nameOf(me: Me): string {
  return me.is_owner ? "owner" : visibleLine(me.name || me.key_id, 40);
}

function AccountMenu({ me, openKeys }: { me: Me; openKeys: () => void }) {
  const queries = useQueryClient();
  const [theme, setTheme] = useState(keptTheme());
  const name = nameOf(me);

  const choose = (wanted: string) => {
    applyTheme(wanted as Theme);
    setTheme(wanted as Theme);
  };
  const leave = async (everywhere: boolean) => {
    await send("DELETE", everywhere ? "/v1/logins" : "/v1/login").catch(() => undefined);
    queries.clear();
    location.assign("/console/");
  };

  return (
    <DropdownMenu.Root>
      <DropdownMenu.Trigger className="account">
        <span className="dot" aria-hidden="true" />
        {name}
      </DropdownMenu.Trigger>
      <DropdownMenu.Portal>
        <DropdownMenu.Content className="menu" align="end" sideOffset={6}>
          <DropdownMenu.Label>Colours</DropdownMenu.Label>
          <DropdownMenu.RadioGroup value={theme} onValueChange={choose}>
            {THEMES.map(([value, label]) => (
              <DropdownMenu.RadioItem key={value} value={value}>
                <DropdownMenu.ItemIndicator className="mark">✓</DropdownMenu.ItemIndicator>
                {label}
              </DropdownMenu.RadioItem>
            ))}
          </DropdownMenu.RadioGroup>
          <DropdownMenu.Separator />
          <DropdownMenu.Item onSelect={openKeys}>Keys</DropdownMenu.Item>
          <DropdownMenu.Item asChild>
            <a href="/docs/">Documentation</a>
          </DropdownMenu.Item>
          <DropdownMenu.Item asChild>
            <a href="/openapi/">The API</a>
          </DropdownMenu.Item>
          <DropdownMenu.Separator />
          <DropdownMenu.Item onSelect={() => leave(false)}>Log out</DropdownMenu.Item>
          <DropdownMenu.Item onSelect={() => leave(true)}>Log out everywhere</DropdownMenu.Item>
        </DropdownMenu.Content>
      </DropdownMenu.Portal>
    </DropdownMenu.Root>
  );
}
