import { type Ask, count, hex, number, type Reply, type Route } from './reply'

const articles: readonly (readonly [string, string, string])[] = [
  [
    'Earth',
    'Third planet from the Sun',
    'Earth is the third planet from the Sun and the only astronomical object known to harbor life.',
  ],
  ['Moon', 'Natural satellite orbiting Earth', "The Moon is Earth's only natural satellite."],
  [
    'Toll road',
    'Roadway for which a fee is assessed for passage',
    'A toll road, also known as a turnpike, is a road for which a fee is assessed for passage.',
  ],
  [
    'Ada Lovelace',
    'English mathematician (1815–1852)',
    'Ada Lovelace was an English mathematician chiefly known for her work on the Analytical Engine.',
  ],
  [
    'Alan Turing',
    'English computer scientist (1912–1954)',
    'Alan Turing was an English mathematician and computer scientist.',
  ],
  [
    'HTTP',
    'Application protocol',
    'HTTP is an application layer protocol for distributed, collaborative information systems.',
  ],
  [
    'Stablecoin',
    'Cryptocurrency pegged to an asset',
    'A stablecoin is a cryptocurrency whose value is pegged to a reference asset.',
  ],
  ['AC/DC', 'Australian rock band', 'AC/DC are an Australian rock band formed in Sydney in 1973.'],
]

const thumbnails = '//upload.wikimedia.org/wikipedia/commons/thumb'

function key(title: string): string {
  return title.replaceAll(' ', '_')
}

/** Marks the searched words, in any case. */
function highlight(text: string, words: readonly string[]): string {
  return text
    .split(/(?<=\s)|(?=[\s.,])/)
    .map((part) =>
      words.includes(part.toLowerCase()) ? `<span class="searchmatch">${part}</span>` : part,
    )
    .join('')
}

function search({ url }: Ask): Reply {
  const query = url.searchParams.get('q')?.trim()
  if (!query) {
    const body = { errorKey: 'rest-missing-parameter', httpCode: 400, httpReason: 'Bad Request' }
    return { status: 400, body }
  }
  const words = query.toLowerCase().split(/\s+/)
  const found = articles.filter((article) =>
    words.some((word) => article.join(' ').toLowerCase().includes(word)),
  )
  const titles = found.length > 0 ? found : [[query, `Article about ${query}`, query] as const]
  const pages = titles
    .slice(0, count(url, 'limit', 50, 100))
    .map(([title, description, extract]) => ({
      id: number(`page|${title}`, 1000, 90_000_000),
      key: key(title),
      title,
      excerpt: highlight(extract, words),
      matched_title: null,
      anchor: null,
      description,
      thumbnail: {
        mimetype: 'image/jpeg',
        width: 60,
        height: 60,
        duration: null,
        url: `${thumbnails}/${hex(title, 1)}/${key(title)}.jpg/60px-${key(title)}.jpg`,
      },
    }))
  return { body: { pages } }
}

/** The title in the form of the real service's paths; it redirects from any other form. */
function canonical(title: string): string {
  const plain = key(title.trim())
  return plain.charAt(0).toUpperCase() + plain.slice(1)
}

function summary({ captures, url }: Ask): Reply {
  const asked = captures[0] ?? ''
  if (asked !== canonical(asked)) {
    const location = encodeURIComponent(canonical(asked)) + url.search
    return { status: 301, type: 'text/plain', body: '', headers: { Location: location } }
  }
  const title = asked.replaceAll('_', ' ')
  if (/^(no such|nonexistent)/i.test(title)) {
    return {
      status: 404,
      type: 'application/problem+json',
      body: {
        type: 'https://mediawiki.org/wiki/HyperSwitch/errors/not_found',
        title: 'Not found.',
        method: 'get',
        detail: 'Page or revision not found.',
        uri: url.pathname,
      },
    }
  }
  const known = articles.find(([name]) => name.toLowerCase() === title.toLowerCase())
  const [name, description, extract] = known ?? [
    title,
    `Article about ${title}`,
    `${title} is a subject.`,
  ]
  const page = `https://en.wikipedia.org/wiki/${encodeURIComponent(key(name))}`
  const urls = {
    page,
    revisions: `${page}?action=history`,
    edit: `${page}?action=edit`,
    talk: page,
  }
  const image = `https:${thumbnails}/${hex(name, 1)}/${encodeURIComponent(key(name))}.jpg`
  return {
    type: 'application/json; charset=utf-8; profile="https://www.mediawiki.org/wiki/Specs/Summary/1.5.0"',
    headers: { 'Set-Cookie': 'WMF-Uniq=sample; Path=/; Secure', 'Content-Language': 'en' },
    body: {
      type: 'standard',
      title: name,
      displaytitle: `<span class="mw-page-title-main">${name}</span>`,
      namespace: { id: 0, text: '' },
      wikibase_item: `Q${number(`item|${name}`, 1, 9_999_999)}`,
      titles: { canonical: key(name), normalized: name, display: name },
      pageid: number(`page|${name}`, 1000, 90_000_000),
      thumbnail: { source: image, width: 320, height: 320 },
      originalimage: { source: image, width: 2048, height: 2048 },
      lang: 'en',
      dir: 'ltr',
      revision: String(number(`revision|${name}`, 1_000_000_000, 1_300_000_000)),
      tid: hex(name, 16),
      timestamp: '2026-11-12T08:15:30Z',
      description,
      description_source: 'local',
      content_urls: { desktop: urls, mobile: urls },
      extract,
      extract_html: `<p>${extract}</p>`,
    },
  }
}

/** English Wikipedia: core REST search and the summary of a page. */
export const routes: readonly Route[] = [
  { path: /^\/w\/rest\.php\/v1\/search\/page$/, answer: search },
  { path: /^\/api\/rest_v1\/page\/summary\/([^/]+)$/, answer: summary },
]
