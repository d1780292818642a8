import { isTable } from '../../config/reader'
import { valueAt } from '../../schema/JsonSchema'

/** Values of a specification. */

export type Table = Readonly<Record<string, unknown>>

/** The table at a place, after its references; undefined where there is none. */
export function follow(root: Table, value: unknown): Table | undefined {
  let found = value
  for (let steps = 0; steps < 20; steps++) {
    if (!isTable(found)) return undefined
    if (typeof found.$ref !== 'string') return found
    found = valueAt(root, found.$ref)
  }
  return undefined
}

export function isNumber(value: unknown): value is number {
  return typeof value === 'number' && Number.isFinite(value)
}

export function isScalar(value: unknown): value is string | number | boolean {
  return typeof value === 'string' || typeof value === 'boolean' || isNumber(value)
}

/** The first line of a text, without control characters. */
export function brief(text: string, most: number): string {
  const line = text
    .slice(0, 10 * most)
    .replace(/<[^>]*>/g, ' ')
    .replace(/[\s\p{C}]+/gu, ' ')
    .trim()
  return line.length > most ? `${line.slice(0, most - 3).trimEnd()}...` : line
}

export function textOf(value: unknown): string {
  return typeof value === 'string' ? value : ''
}
