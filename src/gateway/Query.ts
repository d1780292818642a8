import { foldName } from './Fold'

/**
 * Names of a query, as upstreams read them: some ignore the case of letters, and some read `a[]`,
 * `a[0]` or `a.b` as a part of `a`.
 */

/** Names that a buyer must not set. */
export type Names = {
  readonly whole: ReadonlySet<string>
  /** The keys around them: a value of `a` replaces `a[b]`. */
  readonly around: ReadonlySet<string>
}

export function namesOf(names: readonly string[]): Names {
  const folded = names.map(foldName)
  return {
    whole: new Set(folded.flatMap((keys) => keys.slice(-1))),
    around: new Set(folded.flatMap((keys) => keys.slice(0, -1))),
  }
}

/** Whether a value of `name` may set or replace one of the names. */
export function mayChange({ whole, around }: Names, name: string): boolean {
  const keys = foldName(name)
  return keys.some((key) => whole.has(key)) || around.has(keys.at(-1) ?? '')
}

/**
 * Names and values that servers find in one pair of a query. Some also split at `;`: `a=1;key=x`
 * sets `key` there.
 */
export function readPair(pair: string): readonly (readonly [string, string])[] {
  if (!pair.includes(';')) return [decode(pair)]
  const [first = '', ...others] = pair.split(';')
  // With a value, the first part has the name of the whole.
  const parts = first.includes('=') ? others : [first, ...others]
  return [pair, ...parts].map(decode)
}

function decode(pair: string): readonly [string, string] {
  for (const entry of new URLSearchParams(pair)) return entry
  return ['', '']
}

/** Names and values of a query, '' or with its `?`. */
export function readQuery(search: string): Iterable<readonly [string, string]> {
  if (!search.includes(';')) return new URLSearchParams(search)
  return search.slice(1).split('&').flatMap(readPair)
}
