import type { Config, Merchant, NetworkConfig, Param, Route } from '../config/Config'
import { salesOf } from '../config/sales'
import * as Price from '../meter/Price'
import * as ByUse from '../paywall/ByUse'
import * as Amount from '../protocol/Amount'
import * as Example from './Example'
import { type Html, html } from './html'

/** Whether a merchant can deliver now. */
export type Health = 'available' | 'partly' | 'unavailable' | 'out-of-service'

/** State that the page reads at each request, from memory. */
export type Live = {
  isReady(network: NetworkConfig): boolean
  healthOf(merchant: Merchant): Health
}

export type Query = { text: string; page: number }

/** Routes on one page. A larger catalogue has several pages, and a search. */
const pageLength = 100

type Entry = {
  merchant: Merchant
  route: Route
  /** Text for the search, in lower case; set at the first search. */
  words: string | undefined
  /** Set when the route was first shown. */
  markup: Html | undefined
}

/** The catalogue page of a configuration. Parts that do not change are rendered once. */
export function createCataloguePage(config: Config): (live: Live, query: Query) => Html {
  const entries: Entry[] = config.merchants.flatMap((merchant) =>
    merchant.routes.map((route) => ({
      merchant,
      route,
      words: undefined,
      markup: undefined,
    })),
  )
  return (live, { text, page }) => {
    const wanted = text.toLowerCase().split(/\s+/).filter(Boolean)
    const found =
      wanted.length === 0
        ? entries
        : entries.filter((entry) => {
            entry.words ??= wordsOf(entry)
            const { words } = entry
            return wanted.every((word) => words.includes(word))
          })
    const pages = Math.max(1, Math.ceil(found.length / pageLength))
    const current = Math.min(Math.max(1, page), pages)
    const shown = found.slice((current - 1) * pageLength, current * pageLength)
    const groups = Map.groupBy(shown, ({ merchant }) => merchant)
    return html`${intro(config, live)}
${searchForm(text)}
<p class="count" role="status">${countOf(found.length, entries.length, current, pages)}</p>
${groups.size > 1 && contents([...groups.keys()])}
${[...groups].map(([merchant, group]) => section(config, live, merchant, group))}
${pager(text, current, pages)}
${tryTemplate}`
  }
}

function wordsOf({ merchant, route }: Entry): string {
  const { title, tag, slug, description } = merchant
  const own = [route.path, route.summary, route.description]
  return [title, tag, slug, description, ...own].join('\n').toLowerCase()
}

function intro({ service, networks, merchants }: Config, live: Live): Html {
  return html`<h1>Pay per request</h1>
<p class="lead">${salesOf(merchants)} here. You need no account and no API key. Send a request, get the price as <code>402 Payment Required</code>, sign a stablecoin transfer with your wallet, and send the request again.</p>
<h2 id="networks">Networks</h2>
<ul class="networks" aria-labelledby="networks">${networks.map(
    (
      network,
    ) => html`<li data-chain="${network.chainId}" data-name="${network.name}" data-asset="${network.asset.address}" data-symbol="${network.asset.symbol}" data-decimals="${network.asset.decimals}">
<strong>${network.name}</strong> <span class="quiet">${network.id}</span><br>
${network.asset.symbol}${network.testnet && ' (test money)'}, ${transfersOf(network)}<br>
${live.isReady(network) ? badge('good', 'ready') : badge('bad', 'not ready')}</li>`,
  )}</ul>
<h2>Merchants</h2>
<p class="quiet">The whole catalogue for programs is <a href="/openapi.json">${service.baseUrl}/openapi.json</a>.</p>`
}

function transfersOf({ asset }: NetworkConfig): string {
  const names = { permit2: 'Permit2', eip3009: 'EIP-3009' }
  return asset.transfer.map((method) => names[method]).join(' or ')
}

function searchForm(text: string): Html {
  return html`<form class="search" method="get" action="/" role="search">
<label for="q">Search the catalogue</label>
<div><input type="search" id="q" name="q" value="${text}" maxlength="100" autocomplete="off"><button>Search</button></div>
</form>`
}

function countOf(found: number, all: number, current: number, pages: number): string {
  const word = all === 1 ? 'route' : 'routes'
  const routes = found === all ? `${all} ${word}` : `${found} of ${all} ${word}`
  return pages === 1 ? routes : `${routes}, page ${current} of ${pages}`
}

function contents(merchants: readonly Merchant[]): Html {
  return html`<nav aria-label="Merchants"><ul class="contents">${merchants.map(
    ({ slug, title }) => html`<li><a href="#m-${slug}">${title}</a></li>`,
  )}</ul></nav>`
}

function pager(text: string, current: number, pages: number): Html | false {
  if (pages === 1) return false
  const link = (page: number, name: string) => {
    const query = new URLSearchParams({ ...(text === '' ? {} : { q: text }), page: `${page}` })
    return html`<li><a href="/?${query.toString()}">${name}</a></li>`
  }
  return html`<nav aria-label="Further routes"><ul class="contents">${
    current > 1 && link(current - 1, 'Previous page')
  }${current < pages && link(current + 1, 'Next page')}</ul></nav>`
}

const healths: Readonly<Record<Health, Html>> = {
  available: badge('good', 'available'),
  partly: badge('fair', 'partly available'),
  unavailable: badge('bad', 'not answering, nothing is charged'),
  'out-of-service': badge('bad', 'out of service'),
}

/** A state as text; its colour only repeats the text. */
export function badge(kind: 'good' | 'fair' | 'bad', text: string): Html {
  return html`<span class="badge ${kind}">${text}</span>`
}

function section(config: Config, live: Live, merchant: Merchant, entries: readonly Entry[]): Html {
  const { slug, title, tag, description } = merchant
  return html`<section class="merchant" aria-labelledby="m-${slug}">
<h3 id="m-${slug}">${title}</h3>
<p class="state"><span class="quiet">${tag}</span> ${healths[live.healthOf(merchant)]} <a href="/m/${slug}/openapi.json" aria-label="openapi.json of ${title}">openapi.json</a></p>
<p>${description}</p>
${entries.map((entry) => {
  entry.markup ??= routeItem(config, entry)
  return entry.markup
})}
</section>`
}

function routeItem(config: Config, { merchant, route }: Entry): Html {
  const networks = config.networks.filter(({ id }) => merchant.networks.includes(id))
  const example = Example.from(merchant.slug, route)
  const network = networks.find(({ testnet }) => !testnet) ?? networks[0]
  const { service } = config
  const { baseUrl } = service
  const isByUse = ByUse.isOffered(service, merchant, route)
  const commands = Example.commands(example, { baseUrl, network, priceAtomic: route.priceAtomic })
  return html`<details class="route">
<summary><span class="methods">${route.methods.join(' ')}</span> <code>/m/${merchant.slug}${route.path}${tailOf(route)}</code> <span class="what">${route.summary}</span> <span class="price">${Price.short(route)}</span></summary>
<div class="inside">
<p>${route.description}</p>
<h4>Price</h4>
${route.meter !== undefined && html`<p>${Price.sentence(route)}${isByUse && ` ${ByUse.sentence}`}</p>`}
<ul>${networks.map(
    ({ name, asset }) =>
      html`<li>${Price.short(route).replace('$', '')} ${asset.symbol} on ${name}</li>`,
  )}</ul>
${route.params.length > 0 && html`<h4>Parameters</h4><dl class="params">${route.params.map(paramItem)}</dl>`}
<div class="try" data-method="${example.method}" data-target="${example.target}" data-body="${example.body ?? ''}"></div>
<h4>Commands</h4>
${commands.map(
  ({ name, note, text }) =>
    html`<div class="command"><p><strong>${name}</strong> <span class="quiet">${note}</span></p><pre><code>${text}</code></pre></div>`,
)}
</div>
</details>`
}

function tailOf(route: Route): string {
  return route.params
    .filter((param) => param.in === 'tail')
    .map(({ name, required, schema }) => {
      const shown = typeof schema.const === 'string' ? schema.const : braced(name)
      return required ? `/${shown}` : `[/${shown}]`
    })
    .join('')
}

function braced(name: string): string {
  return name.includes('{') ? name : `{${name}}`
}

function paramItem({ name, in: place, required, description, schema, example }: Param): Html {
  const facts = [
    place === 'tail' ? 'in the path' : 'in the query',
    required ? 'required' : 'optional',
    ...(schema.type === undefined ? [] : [typesOf(schema.type)]),
    ...(Array.isArray(schema.enum) ? [`one of ${schema.enum.join(', ')}`] : []),
    ...(example === undefined ? [] : [`such as ${example}`]),
  ]
  return html`<div><dt><code>${name}</code> <span class="quiet">${facts.join(', ')}</span></dt><dd>${description}</dd></div>`
}

/** The types of a JSON Schema in plain words, for authors of queries. */
function typesOf(type: unknown): string {
  return [type].flat().join(' or ').replace('array', 'comma list')
}

/** At least two decimals, without further trailing zeros. */
export function dollars(atomic: bigint): string {
  return Amount.toDecimal(atomic, 6).replace(/(\.\d\d\d*?)0+$/, '$1')
}

/** Cloned by the script; without the script it has no effect. */
const tryTemplate = html`<template id="try">
<h4>Try it</h4>
<form>
<label>Request <span class="quiet verb"></span> <input name="target" spellcheck="false" autocomplete="off"></label>
<label class="body">Body <textarea name="body" rows="4" spellcheck="false"></textarea></label>
<button>Ask for the price</button>
</form>
<div class="answer" aria-live="polite"></div>
</template>
<p class="quiet scriptless">Without JavaScript the try-it panel is missing; the curl command of each route shows the same answer.</p>`
