import { type Ask, count, hex, number, type Reply, type Route, range } from './reply'

const known: readonly (readonly [string, string, string, string, number])[] = [
  ['OL893415W', 'Dune', 'OL79034A', 'Frank Herbert', 1965],
  ['OL45804W', 'Fantastic Mr Fox', 'OL34184A', 'Roald Dahl', 1970],
  ['OL27448W', 'The Lord of the Rings', 'OL26320A', 'J.R.R. Tolkien', 1954],
  ['OL66554W', 'Pride and Prejudice', 'OL21594A', 'Jane Austen', 1813],
  ['OL82563W', 'Foundation', 'OL34221A', 'Isaac Asimov', 1951],
]

function search({ url }: Ask): Reply {
  const terms = ['q', 'title', 'author', 'isbn'].map((name) => url.searchParams.get(name) ?? '')
  const wanted = terms.join(' ').trim().toLowerCase()
  const words = wanted.split(/\s+/).filter(Boolean)
  const exact = known.filter((book) => {
    const text = `${book[1]} ${book[3]}`.toLowerCase()
    return words.length > 0 && words.every((word) => text.includes(word))
  })
  const made = range(/^zzz/.test(wanted) ? 0 : number(`books|${wanted}`, 3, 60)).map((index) => {
    const seed = `${wanted}|${index}`
    const title = `${wanted || 'A book'}, volume ${index + 1}`
    return [
      `OL${number(seed, 1e6, 9e6)}W`,
      title,
      `OL${number(`a${seed}`, 1e5, 9e5)}A`,
      'A. Writer',
      number(`y${seed}`, 1850, 2025),
    ] as const
  })
  const all = words.length > 0 ? [...exact, ...made] : []
  const start = count(url, 'offset', 0, 100_000)
  const docs = all.slice(start, start + count(url, 'limit', 100, 1000))
  return {
    body: {
      numFound: all.length,
      start,
      numFoundExact: true,
      num_found: all.length,
      documentation_url: 'https://openlibrary.org/dev/docs/api/search',
      q: url.searchParams.get('q') ?? '',
      offset: url.searchParams.has('offset') ? start : null,
      docs: docs.map(([id, title, author, name, year]) => ({
        author_key: [author],
        author_name: [name],
        cover_edition_key: `OL${number(`edition|${id}`, 1e6, 9e6)}M`,
        cover_i: number(`cover|${id}`, 1, 14_000_000),
        ebook_access: 'borrowable',
        edition_count: number(`editions|${id}`, 1, 150),
        first_publish_year: year,
        has_fulltext: true,
        ia: [`${hex(id, 4)}book`],
        key: `/works/${id}`,
        language: ['eng'],
        public_scan_b: false,
        title,
      })),
    },
  }
}

function work({ captures }: Ask): Reply {
  const id = captures[0] ?? ''
  const key = `/works/${id}`
  if (!/^OL[1-9]\d*W$/.test(id)) return { status: 404, body: { error: 'notfound', key } }
  if (id === 'OL1W') {
    return { body: { type: { key: '/type/redirect' }, key, location: '/works/OL893415W' } }
  }
  const book = known.find(([found]) => found === id)
  const [, title, author] = book ?? [id, `Work ${id}`, `OL${number(`by|${id}`, 1e5, 9e5)}A`]
  const description = `${title} is described here in one sentence.`
  const revision = number(`revision|${id}`, 1, 80)
  const at = (value: string) => ({ type: '/type/datetime', value })
  return {
    body: {
      title,
      key,
      authors: [{ author: { key: `/authors/${author}` }, type: { key: '/type/author_role' } }],
      type: { key: '/type/work' },
      // The real service sends either, depending on the record's age.
      description: revision % 2 ? description : { type: '/type/text', value: description },
      covers: [number(`cover|${id}`, 1, 14_000_000)],
      subjects: ['Fiction', 'Sample'],
      latest_revision: revision,
      revision,
      created: at('2009-10-15T11:34:21.437031'),
      last_modified: at('2026-08-01T09:00:00.000000'),
    },
  }
}

/** Open Library. */
export const routes: readonly Route[] = [
  { path: /^\/search\.json$/, answer: search },
  { path: /^\/works\/([^/]+)\.json$/, answer: work },
]
