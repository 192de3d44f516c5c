/** A picture of a guest: never decoded before its size is known, and an SVG only where it runs no script. */

import { useEffect, useMemo, useState } from "react";
import { bytes } from "../parts/format";

const MOST_PIXELS = 50_000_000;

export function Raster({ base64, type }: { base64: string; type: "image/png" | "image/jpeg" }) {
  const content = useMemo(() => decoded(base64), [base64]);
  const size = useMemo(
    () => (content ? (type === "image/png" ? pngSize(content) : jpegSize(content)) : null),
    [content, type],
  );

  if (!content || !size)
    return (
      <p className="note">This is no {type.slice(6).toUpperCase()} picture, though its type says it is.</p>
    );
  if (!isShown(size)) {
    return (
      <p className="note">
        A picture of {size.width.toLocaleString()} × {size.height.toLocaleString()} pixels (
        {bytes(content.length)}) is not shown.{" "}
        <Download content={content} type={type} name={`picture.${type.slice(6)}`} />
      </p>
    );
  }
  return <Bitmap content={content} type={type} width={size.width} height={size.height} />;
}

/** In an `img`, an SVG runs no script and loads nothing. Its address is `data:`: opened alone, it is a document of an
 * origin of its own, where a `blob:` would be one of ours, with our login. */
export function Vector({ svg }: { svg: string }) {
  const address = useMemo(() => `data:image/svg+xml;base64,${encoded(svg)}`, [svg]);
  return <Image url={address} />;
}

type Shown = { content: Uint8Array<ArrayBuffer>; type: string; width: number; height: number };

function Bitmap({ content, type, width, height }: Shown) {
  const url = useUrl(content, type);
  return url ? <Image url={url} width={width} height={height} /> : null;
}

function Image({ url, width, height }: { url: string; width?: number; height?: number }) {
  const [isBroken, setBroken] = useState(false);
  if (isBroken) return <p className="note">The browser cannot show this picture.</p>;
  return (
    <img
      className="picture"
      src={url}
      alt="From the sandbox"
      width={width}
      height={height}
      loading="lazy"
      onError={() => setBroken(true)}
    />
  );
}

export function Download({
  content,
  type,
  name,
}: {
  content: Uint8Array<ArrayBuffer>;
  type: string;
  name: string;
}) {
  const url = useUrl(content, type);
  return url ? (
    <a href={url} download={name}>
      Download
    </a>
  ) : null;
}

function useUrl(content: Uint8Array<ArrayBuffer>, type: string): string | null {
  const [url, setUrl] = useState<string | null>(null);
  useEffect(() => {
    const made = URL.createObjectURL(new Blob([content], { type }));
    setUrl(made);
    return () => URL.revokeObjectURL(made);
  }, [content, type]);
  return url;
}

export function decoded(base64: string): Uint8Array<ArrayBuffer> | null {
  try {
    return Uint8Array.from(atob(base64), (character) => character.charCodeAt(0));
  } catch {
    return null;
  }
}

function encoded(text: string): string {
  let binary = "";
  for (const byte of new TextEncoder().encode(text)) binary += String.fromCharCode(byte);
  return btoa(binary);
}

type Size = { width: number; height: number };

/** Whether a picture of that size is decoded. */
export function isShown({ width, height }: Size): boolean {
  return width * height <= MOST_PIXELS;
}

export function pngSize(content: Uint8Array): Size | null {
  const signature = [0x89, 0x50, 0x4e, 0x47, 0x0d, 0x0a, 0x1a, 0x0a];
  if (content.length < 24 || signature.some((byte, index) => content[index] !== byte)) return null;
  const view = new DataView(content.buffer, content.byteOffset);
  return { width: view.getUint32(16), height: view.getUint32(20) };
}

export function jpegSize(content: Uint8Array): Size | null {
  if (content[0] !== 0xff || content[1] !== 0xd8) return null;
  const view = new DataView(content.buffer, content.byteOffset, content.length);
  let at = 2;
  while (at + 9 < content.length) {
    if (content[at] !== 0xff) return null;
    const marker = content[at + 1] ?? 0;
    const isFrame = marker >= 0xc0 && marker <= 0xcf && ![0xc4, 0xc8, 0xcc].includes(marker);
    if (isFrame) return { height: view.getUint16(at + 5), width: view.getUint16(at + 7) };
    at += marker === 0xff ? 1 : 2 + view.getUint16(at + 2);
  }
  return null;
}
