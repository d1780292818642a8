import { readFileSync, statSync } from 'node:fs'
import { dirname, resolve } from 'node:path'
import type { Logo } from './Config'
import { optional, type Table } from './reader'
import * as V from './values'

/** The image is a part of every first visit. */
const maxBytes = 64 * 1024
/** Sides of an image without a size of its own. */
const unknownSize = { width: 1, height: 1 }

/** Reads the image that `logo` names, beside the file. Its bytes, not its name, tell its type. */
export function readLogo(table: Table): Logo | undefined {
  return optional(table, 'logo', (value) => {
    const path = V.filled(value)
    if (typeof path !== 'string') return path
    const bytes = read(resolve(dirname(table.source.file), path))
    if (typeof bytes === 'string') return { wrong: bytes }
    return (
      png(bytes) ??
      svg(bytes) ?? { wrong: 'must name an SVG or PNG file; the content of this one is neither' }
    )
  })
}

/** The bytes, or why they cannot be used. */
function read(file: string): Uint8Array | string {
  try {
    const stat = statSync(file)
    const { size } = stat
    // The content of a device or a pipe may have no end.
    if (!stat.isFile()) return 'must name a file'
    if (size > maxBytes) return `must name a file of at most 64 KiB; this one has ${size} bytes`
    return new Uint8Array(readFileSync(file))
  } catch {
    return 'names a file that cannot be read; the path begins where this file is'
  }
}

const signature = [0x89, 0x50, 0x4e, 0x47, 0x0d, 0x0a, 0x1a, 0x0a]

function png(bytes: Uint8Array): Logo | undefined {
  if (bytes.length < 24 || signature.some((byte, i) => bytes[i] !== byte)) return undefined
  const header = new DataView(bytes.buffer, bytes.byteOffset)
  return { bytes, type: 'image/png', width: header.getUint32(16), height: header.getUint32(20) }
}

/** Before the root element there may be a declaration, comments and a document type. */
const svgStart =
  /^\ufeff?\s*(?:<\?[^>]*\?>\s*|<!--[\s\S]*?-->\s*|<!DOCTYPE[^>[]*>\s*)*<svg(\s[^>]*)?>/i

function svg(bytes: Uint8Array): Logo | undefined {
  let text: string
  try {
    text = new TextDecoder('utf-8', { fatal: true }).decode(bytes)
  } catch {
    return undefined
  }
  const found = svgStart.exec(text)
  if (found === null) return undefined
  return { bytes, type: 'image/svg+xml', ...svgSize(found[1] ?? '') }
}

/** From width and height in pixels, or else from the view box. */
function svgSize(attributes: string): { width: number; height: number } {
  const of = (name: string) =>
    Number(new RegExp(`\\s${name}\\s*=\\s*["']\\s*([\\d.]+)(?:px)?\\s*["']`).exec(attributes)?.[1])
  const [, , , width = 0, height = 0] =
    /\sviewBox\s*=\s*["']\s*([-\d.]+)[\s,]+([-\d.]+)[\s,]+([\d.]+)[\s,]+([\d.]+)/
      .exec(attributes)
      ?.map(Number) ?? []
  if (of('width') > 0 && of('height') > 0) return { width: of('width'), height: of('height') }
  return width > 0 && height > 0 ? { width, height } : unknownSize
}
