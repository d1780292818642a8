import type { Config, Merchant, NetworkConfig, Route } from '../../config/Config'
import * as Price from '../../meter/Price'
import { type Html, html } from '../html'
import * as Parts from '../parts'
import * as Commands from './Commands'
import * as Example from './Example'
import * as SaleState from './SaleState'
import * as Search from './Search'

type Query = { text: string; page: number }

/** Merchants on one page. A larger catalogue has several pages. */
const pageLength = 30
/** A visitor finds what a catalogue of this many routes sells without a search. */
const searchAboveRoutes = 10
/** Routes of a merchant's card. */
const shownRoutes = 3

/** The first page of a configuration: what is sold, how it is paid, and the merchants. */
export function createCataloguePage(config: Config): (live: SaleState.Facts, query: Query) => Html {
  const entries = Search.entriesOf(config)
  const everything = Search.group(entries)
  const cards = new Map<Merchant, Html>()
  let samples: readonly Sample[] | undefined
  return (live, { text, page }) => {
    const found = Search.find(entries, text)
    const groups = found === entries ? everything : Search.group(found)
    samples ??= samplesOf(config)
    const stateOf = (merchant: Merchant) => SaleState.of(live, config.networks, merchant)
    const sample = samples.find(({ merchant }) => stateOf(merchant) === 'available')
    const { shown, current, pages } = Parts.pageOf(groups, page, pageLength)
    const isSearch = text.trim() !== ''
    const linkTo = (to: number) => {
      const query = new URLSearchParams({ ...(isSearch ? { q: text } : {}), page: `${to}` })
      return `/?${query.toString()}#merchants`
    }
    const cardOf = (group: Search.Group) => {
      const known = isSearch ? undefined : cards.get(group.merchant)
      const body = known ?? cardBody(group, text)
      if (!isSearch) cards.set(group.merchant, body)
      return card(group.merchant, stateOf(group.merchant), body)
    }
    return html`${isSearch ? undefined : hero(config, live, sample)}
<section aria-labelledby="merchants">
<div class="heading">${isSearch ? html`<h1 id="merchants">Found for <q>${text.trim()}</q></h1>` : html`<h2 id="merchants">Merchants</h2>`}
<p class="count" role="status">${isSearch ? found.length : Parts.count(groups.length, 'merchant')}${isSearch ? ' of' : ','} ${Parts.count(entries.length, 'route')}</p>
${entries.length > searchAboveRoutes && searchForm(text)}</div>
${groups.length === 0 ? nothing(text) : html`<ul class="cards">${shown.map(cardOf)}</ul>`}
${Parts.pager('Further merchants', { current, pages }, linkTo)}
</section>`
  }
}

function nothing(text: string): Html {
  if (text.trim() === '') return html`<p class="empty">Nothing is sold here yet.</p>`
  return html`<div class="empty"><p>No route matches <strong>${text}</strong>.</p>
<p><a class="button" href="/#merchants">Show all merchants</a></p></div>`
}

function hero(config: Config, live: SaleState.Facts, sample: Sample | undefined): Html {
  const { service, merchants } = config
  const all = merchants.flatMap((merchant) => merchant.routes)
  const routes = all.filter(({ passOf }) => passOf === undefined)
  const lead =
    service.lead ??
    `${Parts.count(routes.length, 'API')} for programs and agents. Pay for each request with a stablecoin, without an account and without a key.`
  return html`<div class="hero">
<div><h1>${service.title}</h1>
<p class="lead">${lead}</p>
${config.networks.some(live.isReady) && html`<p class="human">In a browser: open a merchant below, and pay with your wallet.</p>`}</div>
${sample !== undefined && tryIt(config, sample)}
${networkLine(config.networks, live)}
</div>
<ol class="steps" aria-label="How to buy">
<li><strong>Ask</strong> for anything: you get a price.</li>
<li><strong>Sign</strong> a transfer, which needs no gas.</li>
<li><strong>Get</strong> the answer with a signed receipt.</li>
</ol>`
}

type Sample = { merchant: Merchant; route: Route; example: Example.Example }

/** The GET of each merchant that is the cheapest, and of several the shortest: the cheapest first. */
function samplesOf({ merchants }: Config): Sample[] {
  const order = (a: Sample, b: Sample) =>
    Number(a.route.priceAtomic - b.route.priceAtomic) ||
    a.example.target.length - b.example.target.length
  const best = merchants.flatMap((merchant) => {
    const sold = merchant.routes.filter(({ methods }) => methods.includes('GET'))
    const samples = sold.map((route) => {
      const values = { method: 'GET', body: undefined, of: undefined }
      return { merchant, route, example: Example.compose(merchant.slug, route, values) }
    })
    return samples.sort(order).slice(0, 1)
  })
  return best.sort(order)
}

function tryIt({ service }: Config, { merchant, route, example }: Sample): Html {
  const { baseUrl } = service
  const terms = { baseUrl, network: undefined, priceAtomic: route.priceAtomic }
  const [curl] = Commands.of(example, terms)
  return html`<div class="sample">
<p><strong>Or try it in a terminal</strong></p>
${Parts.command('the command', curl?.text ?? '')}
<p class="outcome"><span class="asked">402 Payment Required</span><span><span class="price">${Price.short(route)}</span> for <a href="${linkOf(merchant, route)}">${route.summary || Example.pathOf(merchant.slug, route)}</a></span></p>
</div>`
}

/** The networks as one line, with the state of those that cannot be used now. */
function networkLine(networks: readonly NetworkConfig[], live: SaleState.Facts): Html {
  const items = networks.map((network) => {
    const state = live.isReady(network) ? undefined : html` ${Parts.badge('bad', 'not ready')}`
    return html`<li>${Parts.coinOn(network)}${state}</li>`
  })
  const isClosed = networks.length > 0 && !networks.some((network) => live.isReady(network))
  return html`<div class="networks"><p id="networks">Pay with</p> <ul aria-labelledby="networks">${items}</ul></div>
${isClosed && html`<p class="notice bad">Nothing can be paid at the moment. The prices stay; try again in a minute.</p>`}`
}

function searchForm(text: string): Html {
  return html`<form class="search" method="get" action="/" role="search">
<label class="hidden" for="q">Search the catalogue</label>
<input type="search" id="q" name="q" value="${text}" maxlength="100" autocomplete="off" placeholder="Search, such as weather"><button class="plain">Search</button>
</form>`
}

function card(merchant: Merchant, state: SaleState.SaleState, body: Html): Html {
  const { slug, title, tag, routes } = merchant
  return html`<li class="card">
<div class="top"><h3 id="m-${slug}"><a href="/merchants/${slug}">${title}</a></h3><span class="price">${Parts.priceFrom(routes)}</span></div>
<p class="state"><span class="tag">${tag}</span>${SaleState.badgeOf(state)}</p>
${body}
</li>`
}

/** The part of a card that changes only with the search. */
function cardBody({ merchant, routes }: Search.Group, text: string): Html {
  const { slug, title, description } = merchant
  const query = text.trim() === '' ? '' : `?${new URLSearchParams({ q: text }).toString()}`
  const more = routes.length - shownRoutes
  return html`<p class="about">${description}</p>
<ul class="offers">${routes
    .slice(0, shownRoutes)
    .map(
      (route) =>
        html`<li><a href="${linkOf(merchant, route)}">${route.summary || Example.pathOf(slug, route)}</a><span class="price">${Price.short(route)}</span></li>`,
    )}</ul>
${more > 0 && html`<p class="more"><a href="/merchants/${slug}${query}" aria-label="${more} more of ${title}">${more} more</a></p>`}`
}

/** The address of a route on its merchant's page. */
export function linkOf({ slug }: Merchant, { path }: Pick<Route, 'path'>): string {
  return `/merchants/${slug}?${new URLSearchParams({ route: path }).toString()}#route`
}
