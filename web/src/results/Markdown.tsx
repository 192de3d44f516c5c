/** Markdown of a guest: rendered, then reduced to plain markup; its links ask before they lead anywhere. */

import type { Config } from "dompurify";
import { Marked } from "marked";
import { AlertDialog } from "radix-ui";
import { type MouseEvent, useLayoutEffect, useMemo, useRef, useState } from "react";
import { visible } from "../parts/format";
import { decoded, isShown, jpegSize, pngSize } from "./Picture";
import { purifier } from "./purify";

/** More is text: the parser runs on the page's own thread. */
const MOST_CHARACTERS = 20_000;
/** Deeper quotes and lists cost the parser more than anything says. */
const MOST_NESTING = 60;
const marked = new Marked({ async: false, gfm: true });

const ALLOWED: Config & { RETURN_TRUSTED_TYPE: true } = {
  ALLOWED_TAGS: [
    ..."a abbr b blockquote br code dd del dl dt em h1 h2 h3 h4 h5 h6 hr i img ins kbd li mark ol p pre s samp small span".split(
      " ",
    ),
    ..."strong sub sup table tbody td tfoot th thead tr u ul var".split(" "),
  ],
  ALLOWED_ATTR: ["href", "src", "alt", "title", "align", "colspan", "rowspan", "start"],
  ALLOWED_URI_REGEXP: /^(?:https?:|mailto:|data:image\/(?:png|jpeg);base64,)/i,
  ALLOW_DATA_ATTR: false,
  ALLOW_ARIA_ATTR: false,
  RETURN_TRUSTED_TYPE: true,
};

function tame(node: Element): void {
  if (node instanceof HTMLImageElement) {
    const source = node.getAttribute("src") ?? "";
    const why = source.startsWith("data:") ? whyNot(source) : `not loaded: ${visible(source)}`;
    if (why) node.replaceWith(document.createTextNode(`[picture ${why}]`));
  }
  // The page has a main heading of its own.
  const [, level] = /^h([1-6])$/.exec(node.localName) ?? [];
  if (level) node.setAttribute("aria-level", String(Math.min(6, Number(level) + 2)));
  // A data address is for pictures.
  if (node instanceof HTMLAnchorElement && /^\s*data:/i.test(node.getAttribute("href") ?? ""))
    node.removeAttribute("href");
}

/** Why a picture within the text is not shown: as elsewhere, its size is known before it is decoded. */
function whyNot(source: string): string | null {
  const [, type, base64] = /^data:image\/(png|jpeg);base64,([A-Za-z0-9+/=]*)$/.exec(source) ?? [];
  const content = base64 ? decoded(base64) : null;
  if (!content) return "not shown: it is no PNG and no JPEG";
  const size = type === "png" ? pngSize(content) : jpegSize(content);
  if (!size) return "not shown: it is not of its type";
  return isShown(size) ? null : `not shown: ${size.width} × ${size.height} pixels`;
}

export default function Markdown({ text }: { text: string }) {
  const place = useRef<HTMLDivElement>(null);
  const [address, setAddress] = useState<string | null>(null);
  const [shown, rest] = useMemo(() => cut(text), [text]);
  const isPlain = useMemo(() => isDeep(shown), [shown]);

  useLayoutEffect(() => {
    if (place.current && !isPlain) place.current.innerHTML = clean(shown) as unknown as string;
  }, [shown, isPlain]);

  if (isPlain) return <pre className="plain-text">{visible(text)}</pre>;

  const asked = (event: MouseEvent) => {
    const link = (event.target as HTMLElement).closest("a");
    if (!link) return;
    event.preventDefault();
    if (link.href) setAddress(link.href);
  };

  return (
    <>
      {/* biome-ignore lint/a11y/noStaticElementInteractions: it holds links, which keys reach */}
      {/* biome-ignore lint/a11y/useKeyWithClickEvents: Enter on a link is a click */}
      <div className="markdown" ref={place} onClick={asked} onAuxClick={asked} />
      {rest && (
        <>
          <p className="note">
            Only the first {shown.length.toLocaleString()} characters are shown as Markdown; here is the rest.
          </p>
          <pre className="plain-text">{visible(rest)}</pre>
        </>
      )}
      <AlertDialog.Root open={address !== null} onOpenChange={(isOpen) => !isOpen && setAddress(null)}>
        <AlertDialog.Portal>
          <AlertDialog.Overlay className="overlay" />
          <AlertDialog.Content className="dialog">
            <AlertDialog.Title>Open this address?</AlertDialog.Title>
            <AlertDialog.Description>
              The sandbox made this link; whoever serves it learns that you came.
            </AlertDialog.Description>
            <code className="whole-address">{visible(address ?? "")}</code>
            <div className="row end">
              <AlertDialog.Cancel>Stay here</AlertDialog.Cancel>
              <a
                className="button"
                href={address ?? undefined}
                target="_blank"
                rel="noopener noreferrer"
                onClick={() => setAddress(null)}
              >
                Open in a new tab
              </a>
            </div>
          </AlertDialog.Content>
        </AlertDialog.Portal>
      </AlertDialog.Root>
    </>
  );
}

/** The part that is rendered, which ends with a line where it can, and the rest. */
export function cut(text: string): [string, string] {
  if (text.length <= MOST_CHARACTERS) return [text, ""];
  const end = text.lastIndexOf("\n", MOST_CHARACTERS);
  const at = end > 0 ? end : MOST_CHARACTERS;
  return [text.slice(0, at), text.slice(at)];
}

function clean(text: string): TrustedHTML {
  purifier.addHook("afterSanitizeAttributes", tame);
  try {
    return purifier.sanitize(marked.parse(text) as string, ALLOWED) as unknown as TrustedHTML;
  } finally {
    purifier.removeHook("afterSanitizeAttributes", tame);
  }
}

function isDeep(text: string): boolean {
  return new RegExp(
    `^(?:[ \\t>*+-]|\\d+[.)]){${MOST_NESTING},}|(?:[\\[(*_]){${MOST_NESTING * 4},}`,
    "m",
  ).test(text);
}
