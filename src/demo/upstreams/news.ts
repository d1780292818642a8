import {
  type Ask,
  count,
  dayMs,
  hex,
  number,
  pick,
  type Reply,
  type Route,
  range,
  todayMs,
} from './reply'

const topics = [
  'a compiler',
  'SQLite',
  'a toll road',
  'stablecoins',
  'HTTP 402',
  'a garden',
] as const
const verbs = [
  'Show HN: I built',
  'Ask HN: Who still uses',
  'The quiet return of',
  'What we learned from',
] as const

function hit(query: string, tag: string, index: number) {
  const seed = `${query}|${tag}|${index}`
  const id = String(number(`id|${seed}`, 40_000_000, 46_000_000))
  const author = `user${number(`author|${seed}`, 1, 999)}`
  const title = `${pick(`verb|${seed}`, verbs)} ${query || pick(`topic|${seed}`, topics)} (${index + 1})`
  const createdMs = todayMs - number(`age|${seed}`, 0, 3 * dayMs)
  const highlight = {
    value: title,
    matchLevel: query ? 'full' : 'none',
    matchedWords: query ? [query] : [],
  }
  return {
    _highlightResult: { title: highlight, author: { ...highlight, value: author } },
    _tags: ['story', `author_${author}`, `story_${id}`, ...(tag === 'front_page' ? [tag] : [])],
    author,
    children: range(number(`children|${seed}`, 0, 3)).map((child) => Number(id) + child + 1),
    created_at: `${new Date(createdMs).toISOString().slice(0, 19)}Z`,
    created_at_i: Math.floor(createdMs / 1000),
    num_comments: number(`comments|${seed}`, 0, 400),
    objectID: id,
    points: number(`points|${seed}`, 1, 900),
    story_id: Number(id),
    title,
    updated_at: `${new Date(todayMs).toISOString().slice(0, 19)}Z`,
    url: `https://example.com/${hex(seed, 6)}`,
  }
}

function search({ url }: Ask): Reply {
  const query = url.searchParams.get('query') ?? ''
  const tag = url.searchParams.get('tags') ?? 'story'
  const perPage = count(url, 'hitsPerPage', 20, 1000)
  const page = count(url, 'page', 0, 1000)
  const total =
    tag === 'front_page' ? 30 : /^zzz/i.test(query) ? 0 : number(`total|${query}`, 40, 900)
  const indexes = range(total).slice(page * perPage, (page + 1) * perPage)
  return {
    body: {
      hits: indexes.map((index) => hit(query, tag, index)),
      hitsPerPage: perPage,
      nbHits: total,
      nbPages: Math.ceil(total / Math.max(1, perPage)),
      page,
      exhaustive: { nbHits: true, typo: true },
      exhaustiveNbHits: true,
      exhaustiveTypo: true,
      params: url.searchParams.toString(),
      processingTimeMS: 1,
      processingTimingsMS: { _request: { roundTrip: 12 }, total: 1 },
      query,
      serverTimeMS: 2,
    },
  }
}

/** Hacker News by Algolia. */
export const routes: readonly Route[] = [
  { path: /^\/api\/v1\/search(?:_by_date)?$/, answer: search },
]
