import type { Config, Merchant, Route } from '../../config/Config'

/** A route with the text in which it is found. */
export type Entry = {
  merchant: Merchant
  route: Route
  /** In lower case; set at the first search. */
  words: string | undefined
}

/** The routes of a merchant that were found. */
export type Group = { merchant: Merchant; routes: readonly Route[] }

export function entriesOf({ merchants }: Pick<Config, 'merchants'>): Entry[] {
  return merchants.flatMap((merchant) =>
    merchant.routes.map((route) => ({ merchant, route, words: undefined })),
  )
}

/** The entries that contain every word of a text, in their order; all for an empty text. */
export function find(entries: readonly Entry[], text: string): readonly Entry[] {
  // A set, because an address may repeat a word thousands of times.
  const wanted = [...new Set(text.toLowerCase().split(/\s+/).filter(Boolean))]
  if (wanted.length === 0) return entries
  return entries.filter((entry) => {
    entry.words ??= wordsOf(entry)
    const { words } = entry
    return wanted.every((word) => words.includes(word))
  })
}

/** By merchant, in the order of the file. */
export function group(entries: readonly Entry[]): Group[] {
  const groups = Map.groupBy(entries, ({ merchant }) => merchant)
  return [...groups].map(([merchant, found]) => ({
    merchant,
    routes: found.map(({ route }) => route),
  }))
}

function wordsOf({ merchant, route }: Entry): string {
  const { title, tag, slug, description } = merchant
  const examples = route.params.map(({ name, example }) => `${name} ${example ?? ''}`)
  const own = [route.path, route.summary, route.description, ...examples]
  return [title, tag, slug, description, ...own].join('\n').toLowerCase()
}
