// @ts-check
/**
 * Links that write the same again: model, text, settings and seed. All of it is in the fragment, which browsers keep to
 * themselves, so that no server sees the text. Whatever a link brings is checked before it is used.
 */

import { packed, parsed, unpacked } from "./remember.js";

/** @typedef {import("./document.js").Pieces} Pieces */
/** @typedef {{model: string, settings: Record<string, string>, pieces: Pieces}} Shared */

const NAME = "share";
/** Bytes that a link may unfold to. */
const MOST = 4_000_000;

/** @param {ReadableStream<Uint8Array<ArrayBuffer>>} stream */
async function bytesOf(stream) {
  /** @type {Uint8Array<ArrayBuffer>[]} */
  const parts = [];
  let length = 0;
  const reader = stream.getReader();
  for (let { done, value } = await reader.read(); !done && value; { done, value } = await reader.read()) {
    length += value.length;
    if (length > MOST) {
      await reader.cancel();
      throw new Error("The link holds more than a text.");
    }
    parts.push(value);
  }
  return new Uint8Array(await new Blob(parts).arrayBuffer());
}

/** @param {Shared} shared @returns {Promise<string>} an address of this page */
export async function linkTo({ model, settings, pieces }) {
  const text = JSON.stringify({ model, settings, pieces: packed(pieces, false) });
  const bytes = await bytesOf(new Blob([text]).stream().pipeThrough(new CompressionStream("deflate-raw")));
  const letters = Array.from(bytes, (byte) => String.fromCharCode(byte)).join("");
  const code = btoa(letters).replaceAll("+", "-").replaceAll("/", "_").replaceAll("=", "");
  return `${location.origin}${location.pathname}#${NAME}=${code}`;
}

/** What the page's address shares: null where nothing is, or nothing that can be read. @returns {Promise<Shared|null>} */
export async function sharedBy(/** @type {string} */ fragment) {
  const code = new URLSearchParams(fragment.replace(/^#/, "")).get(NAME);
  if (!code) return null;
  try {
    const letters = atob(code.replaceAll("-", "+").replaceAll("_", "/"));
    const bytes = Uint8Array.from(letters, (letter) => letter.charCodeAt(0));
    const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("deflate-raw"));
    const data = parsed(new TextDecoder().decode(await bytesOf(stream)));
    const pieces = unpacked(data?.pieces);
    if (!pieces || typeof data.model !== "string" || typeof data.settings !== "object") return null;
    const settings = Object.entries(data.settings ?? {}).filter(([, value]) => typeof value === "string");
    return { model: data.model, settings: Object.fromEntries(settings), pieces };
  } catch {
    return null;
  }
}
