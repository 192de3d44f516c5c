/** HTML of a guest, in a document of its own that reaches neither the page nor the network.
 *
 * Still by default: what acts by itself is taken out, and no script would run. The viewer can have its scripts run, for
 * this one result.
 */

import { type RefObject, useEffect, useRef, useState } from "react";
import { isShare } from "../api/reader";

const MOST_HEIGHT = 600;
const LEAST_HEIGHT = 24;

type Given = { html: string; canMove?: boolean; startsMoving?: boolean };

export function HtmlFrame({ html, canMove = true, startsMoving = false }: Given) {
  const [isAsked, setMoving] = useState(startsMoving);
  // Those who read a share have no other document to load either: neither its page's policy nor its server has one.
  const isMoving = isAsked && !isShare();
  return (
    <div className="guest">
      <div className="guest-head">
        <span>from the sandbox{isMoving ? ", its scripts run" : ""}</span>
        {canMove && !isMoving && !isShare() && (
          <button type="button" className="subtle" onClick={() => setMoving(true)}>
            Run its scripts
          </button>
        )}
        {isMoving && (
          <button type="button" className="subtle" onClick={() => setMoving(false)}>
            Stop them
          </button>
        )}
      </div>
      {isMoving && (
        <p className="hint">
          The scripts of this result can send what they see over WebRTC, and in the names and addresses of
          hosts that they have your browser look up or connect to. They reach nothing of this page.
        </p>
      )}
      <Frame key={String(isMoving)} html={html} isMoving={isMoving} />
    </div>
  );
}

function Frame({ html, isMoving }: { html: string; isMoving: boolean }) {
  const frame = useRef<HTMLIFrameElement>(null);
  const [height, setHeight] = useState(LEAST_HEIGHT);
  const [isTooMuch, setTooMuch] = useState(false);

  useEffect(() => {
    let port: MessagePort | null = null;
    let isGone = false;
    const take = async (event: MessageEvent) => {
      const inside = frame.current?.contentWindow;
      // Another frame may claim to be this one; a second greeting is the guest's.
      if (port || !inside || event.source !== inside || event.data?.fumehood !== "ready") return;
      const channel = new MessageChannel();
      port = channel.port1;
      port.onmessage = ({ data }) => setHeight(bounded(data?.height));
      const shown = isMoving ? html : (await import("./purify")).stillHtml(html);
      if (isGone) return;
      if (shown === null) setTooMuch(true);
      else inside.postMessage({ html: withTheme(shown) }, "*", [channel.port2]);
    };
    addEventListener("message", take);
    return () => {
      isGone = true;
      removeEventListener("message", take);
      port?.close();
    };
  }, [html, isMoving]);

  const hold = useOwnFocus(frame);

  if (isTooMuch) return <p className="note">This HTML has too many elements to be shown here.</p>;

  return (
    <iframe
      ref={frame}
      title="A result from the sandbox"
      src={isShare() ? "/share/frame" : isMoving ? "/console/frame?scripts" : "/console/frame"}
      sandbox="allow-scripts"
      referrerPolicy="no-referrer"
      loading="lazy"
      style={{ height }}
      {...hold}
    />
  );
}

/** Keeps the focus out of a guest's frame unless the viewer has put it there: what is typed is not for a false login. */
function useOwnFocus(frame: RefObject<HTMLIFrameElement | null>) {
  const isPointedAt = useRef(false);
  useEffect(() => {
    let last: Element | null = document.activeElement;
    let isTabbing = false;
    const focused = (event: FocusEvent) => {
      if (event.target instanceof HTMLElement && event.target !== frame.current) last = event.target;
    };
    const pressed = (event: KeyboardEvent) => {
      isTabbing = event.key === "Tab";
      // What a key moves, it has moved before the next turn.
      if (isTabbing)
        setTimeout(() => {
          isTabbing = false;
        }, 0);
    };
    const left = () => {
      if (document.activeElement !== frame.current || isPointedAt.current || isTabbing) return;
      // While the focus is on its way, it cannot be turned back.
      setTimeout(() => {
        if (document.activeElement !== frame.current) return;
        const back = last?.isConnected ? last : document.getElementById("main");
        frame.current?.blur();
        if (back instanceof HTMLElement) back.focus({ preventScroll: true });
      }, 0);
    };
    addEventListener("focusin", focused);
    addEventListener("keydown", pressed, true);
    addEventListener("blur", left);
    return () => {
      removeEventListener("focusin", focused);
      removeEventListener("keydown", pressed, true);
      removeEventListener("blur", left);
    };
  }, [frame]);
  return {
    onPointerEnter: () => {
      isPointedAt.current = true;
    },
    onPointerLeave: () => {
      isPointedAt.current = false;
    },
  };
}

export function bounded(height: unknown): number {
  return typeof height === "number" && Number.isFinite(height)
    ? Math.min(MOST_HEIGHT, Math.max(LEAST_HEIGHT, height))
    : LEAST_HEIGHT;
}

/** The guest's HTML behind the colours of the page, which it may set otherwise. */
function withTheme(html: string): string {
  const style = getComputedStyle(document.body);
  const scheme = matchesDark() ? "dark" : "light";
  return (
    `<!doctype html><meta charset="utf-8"><style>:root{color-scheme:${scheme}}` +
    `body{margin:8px;background:${style.getPropertyValue("background-color")};color:${style.color};font:14px system-ui,sans-serif}` +
    `table.dataframe{border-collapse:collapse}table.dataframe td,table.dataframe th{padding:2px 8px}</style>${html}`
  );
}

function matchesDark(): boolean {
  const chosen = document.documentElement.style.colorScheme;
  return chosen === "dark" || (chosen !== "light" && matchMedia("(prefers-color-scheme: dark)").matches);
}
