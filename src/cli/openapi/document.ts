import { readFileSync, statSync } from 'node:fs'
import { upgrade } from '@scalar/openapi-upgrader'
import { codeOf } from '../../config/env'
import { isTable } from '../../config/reader'
import { CommandError } from '../Command'
import type { Table } from './Value'

/** A specification in the form of OpenAPI 3.1, whatever version it was written in. */
export type Document = {
  root: Table
  /** Where it was fetched; undefined for a file. */
  url: URL | undefined
}

const bytesMax = 32 * 1024 * 1024
/** Longest text in which the line of a fault is looked for. */
const locatedMax = 2 * 1024 * 1024
const levelsMax = 200
const partsMax = 3_000_000
const fetchMs = 30_000

/**
 * Reads a specification from a file, or from an http or https URL. Nothing that it refers to is
 * read. Throws CommandError.
 */
export async function readDocument(source: string): Promise<Document> {
  const isUrl = /^https?:\/\//i.test(source)
  const url = isUrl ? URL.parse(source) : undefined
  if (url === null) throw new CommandError(`--openapi ${source} is not a URL`)
  const text = url === undefined ? readFile(source) : await fetchText(url)
  const parsed = await parse(text.replace(/^\ufeff/, ''), source)
  const version = isTable(parsed) ? (parsed.openapi ?? parsed.swagger) : undefined
  if (!isTable(parsed) || !/^(2\.0|3\.[012](\.|$))/.test(String(version)))
    throw new CommandError(
      `${source} has neither openapi: 3.0, 3.1 or 3.2 nor swagger: "2.0" at its top`,
    )
  assertOwn(parsed, source)
  try {
    // A version that YAML read as a number.
    const key = parsed.swagger === undefined ? 'openapi' : 'swagger'
    return { root: upgrade({ ...parsed, [key]: String(version) }, '3.1') as Table, url }
  } catch (error) {
    const reason = error instanceof Error ? error.message : String(error)
    throw new CommandError(`${source} is not a valid specification: ${reason.split('\n')[0]}`)
  }
}

function readFile(path: string): string {
  try {
    assertSize(statSync(path).size, path)
    return readFileSync(path, 'utf8')
  } catch (error) {
    if (error instanceof CommandError) throw error
    throw new CommandError(`${path} cannot be read (${codeOf(error)})`)
  }
}

async function fetchText(url: URL): Promise<string> {
  const chunks: Uint8Array[] = []
  let bytes = 0
  try {
    const signal = AbortSignal.timeout(fetchMs)
    const response = await fetch(url, { redirect: 'manual', signal })
    const location = response.headers.get('location')
    if (location !== null)
      throw new CommandError(`${url.href} leads to ${new URL(location, url).href}: name that one`)
    if (!response.ok) throw new CommandError(`${url.href} answers ${response.status}`)
    for await (const chunk of response.body ?? []) {
      bytes += chunk.byteLength
      assertSize(bytes, url.href)
      chunks.push(chunk)
    }
  } catch (error) {
    if (error instanceof CommandError) throw error
    const reason = error instanceof Error ? error.message : String(error)
    throw new CommandError(`${url.href} cannot be fetched: ${reason}`)
  }
  return Buffer.concat(chunks).toString('utf8')
}

function assertSize(bytes: number, source: string): void {
  if (bytes > bytesMax) throw new CommandError(`${source} is over ${bytesMax / 2 ** 20} MiB`)
}

async function parse(text: string, source: string): Promise<unknown> {
  try {
    return /^\s*[{[]/.test(text) ? JSON.parse(text) : Bun.YAML.parse(text)
  } catch (error) {
    if (error instanceof RangeError) throw tooDeep(source)
    const reason = error instanceof Error ? error.message : String(error)
    if (/excessive alias/i.test(reason))
      throw new CommandError(`${source} repeats its aliases too often: write their values once`)
    if (text.length > locatedMax) throw new CommandError(`${source} cannot be read: ${reason}`)
    return parseSlowly(text, source)
  }
}

/** By a parser that names the line of a fault, and takes 20 times as long. It reads JSON, too. */
async function parseSlowly(text: string, source: string): Promise<unknown> {
  const { parse, YAMLParseError } = await import('yaml')
  try {
    return parse(text, { logLevel: 'error', schema: 'core' })
  } catch (error) {
    if (error instanceof RangeError) throw tooDeep(source)
    const [reason = ''] = String(error instanceof Error ? error.message : error).split(
      / at line|\n/,
    )
    const line = error instanceof YAMLParseError ? `:${error.linePos?.[0].line ?? 1}` : ''
    throw new CommandError(`${source}${line}: ${reason}`)
  }
}

function tooDeep(source: string, place = ''): CommandError {
  const where = place === '' ? '' : ` at ${place.slice(0, 80)}...`
  return new CommandError(`${source} has more than ${levelsMax} levels${where}`)
}

/** Members whose values are data of any form. */
const data = new Set(['example', 'examples', 'default', 'enum', 'const', 'value'])

/**
 * Refuses what would take the upgrade or its readers too long, and references to other documents,
 * which are never read. An alias of YAML counts at each of its places.
 */
function assertOwn(root: Table, source: string): void {
  type Place = { value: object; path: string; level: number; isData: boolean; isNames: boolean }
  const open: Place[] = [{ value: root, path: '', level: 0, isData: false, isNames: false }]
  let parts = 0
  for (let place = open.pop(); place !== undefined; place = open.pop()) {
    const { value, path, level, isData, isNames } = place
    if (level > levelsMax) throw tooDeep(source, path)
    for (const [key, inner] of Object.entries(value)) {
      if (++parts > partsMax) throw new CommandError(`${source} has over ${partsMax} values`)
      if (key === '$ref' && typeof inner === 'string' && !inner.startsWith('#') && !isData)
        throw new CommandError(
          `${source}: ${path} refers to ${inner.slice(0, 200)}, and other files and hosts are never ` +
            'read: bundle the specification into one file',
        )
      if (typeof inner !== 'object' || inner === null) continue
      open.push({
        value: inner,
        path: `${path}/${key}`,
        level: level + 1,
        isData: isData || (!isNames && (data.has(key) || key.startsWith('x-'))),
        isNames: !isNames && (key === 'properties' || key === 'schemas'),
      })
    }
  }
}
