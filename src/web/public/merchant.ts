import type { Config, Merchant, Method, Param, Route } from '../../config/Config'
import type { Meter, Rates } from '../../meter/Meter'
import * as Price from '../../meter/Price'
import * as Entitlements from '../../paywall/entitlement/Entitlements'
import * as ByChannel from '../../paywall/offer/ByChannel'
import * as ByUse from '../../paywall/usage/ByUse'
import { type Html, html } from '../html'
import * as Parts from '../parts'
import * as Commands from './Commands'
import { linkOf } from './catalogue'
import * as Example from './Example'
import { commandTabs, given, walletPanel } from './panel'
import * as SaleState from './SaleState'
import * as Search from './Search'

/** The choices and the values of a visitor of a merchant's page. */
type Query = {
  /** Path of a route below the merchant. */
  route: string | undefined
  text: string
  page: number
  values: Example.Values
}

/** Routes on one page of the list. A larger merchant has several pages, and a search. */
const pageLength = 100
const searchAboveRoutes = 10

/** Longest value that a page of a merchant shows again. */
const valueMaxCharacters = 4000

/** Reads the query of a merchant's page. A form without scripts sends each parameter as `p.NAME`. */
export function readQuery(query: URLSearchParams): Query {
  const read = (name: string) => query.get(name)?.slice(0, valueMaxCharacters)
  const isForm = [...query.keys()].some((name) => name.startsWith('p.'))
  return {
    route: read('route'),
    text: (read('q') ?? '').slice(0, 100),
    page: Number(read('page') ?? 1),
    values: {
      method: read('method'),
      body: read('body'),
      of: isForm ? (name) => read(`p.${name}`) : undefined,
    },
  }
}

/** The page of a merchant: its routes, and one of them with all that is needed to buy it. */
export function merchantPage(
  { config, toolOf }: { config: Config; toolOf(route: Route): string | undefined },
  live: SaleState.Facts,
  merchant: Merchant,
  query: Query,
): Html {
  const { title, tag, description, slug, routes } = merchant
  const { values } = query
  const chosen = routes.find(({ path }) => path === query.route)
  const found = Search.group(Search.find(Search.entriesOf({ merchants: [merchant] }), query.text))
  const matching = found[0]?.routes ?? []
  const route = chosen ?? matching[0] ?? routes[0]
  const { sells, text } = offerOf(live, config.networks, merchant, route)
  return html`<nav class="crumbs" aria-label="Breadcrumb"><a href="/#merchants">All merchants</a></nav>
<div class="head">
<div class="top"><h1>${title}</h1><span class="price">${Parts.priceFrom(routes)}</span></div>
<p class="state"><span class="tag">${tag}</span>${SaleState.badgeOf(SaleState.of(live, config.networks, merchant))}</p>
<p class="lead">${description}</p>
${!sells && html`<p class="notice bad">${text}</p>`}
<p class="actions">${route !== undefined && sells && html`<a class="button" href="#try">${isPlain(route) ? 'Go to payment:' : 'Fill in and pay'} ${Price.short(route)}</a> `}<a href="/m/${slug}/openapi.json">openapi.json for programs</a></p>
${route !== undefined && sells && html`<p class="quiet">The button opens the form below. Nothing is charged before you confirm in your wallet.</p>`}
</div>
${
  route === undefined
    ? html`<p class="empty">This merchant sells nothing yet.</p>`
    : html`<div class="shop">
${routes.length > 1 && routeList(merchant, { matching, route, query })}
${routeSection(config, { merchant, route, values, example: Example.compose(slug, route, values), tool: toolOf(route), closed: text, live })}
</div>`
}`
}

/** Whether a wallet of a browser can buy a route now; `text` says why not. */
function offerOf(
  live: SaleState.Facts,
  networks: Config['networks'],
  merchant: Merchant,
  route: Route | undefined,
): { sells: boolean; text: string } {
  const row = SaleState.states[SaleState.of(live, networks, merchant, route)]
  if (!row.sells || route === undefined || ByChannel.takes(route, 'exact')) return row
  return { sells: false, text: 'A wallet in a browser cannot pay for this. A program can.' }
}

/** Whether there is nothing to enter for a request. */
function isPlain(route: Route): boolean {
  return Example.fieldsOf(route).length === 0 && !route.methods.some(Example.takesBody)
}

function routeList(
  merchant: Merchant,
  { matching, route, query }: { matching: readonly Route[]; route: Route; query: Query },
): Html {
  const { slug, title, routes } = merchant
  const { shown, current, pages } = Parts.pageOf(matching, query.page, pageLength)
  const linkTo = (page: number) => {
    const search = query.text === '' ? {} : { q: query.text }
    return `/merchants/${slug}?${new URLSearchParams({ ...search, page: `${page}` }).toString()}`
  }
  return html`<nav class="routes" aria-label="Routes of ${title}">
<p class="quiet">${matching.length === routes.length ? Parts.count(routes.length, 'route') : `${matching.length} of ${Parts.count(routes.length, 'route')}`}</p>
${routes.length > searchAboveRoutes && searchForm(slug, query.text)}
<ul>${shown.map(
    (each) =>
      html`<li><a href="${linkOf(merchant, each)}"${each === route && html` aria-current="true"`}><span class="what">${each.summary || Example.pathOf(slug, each)}</span><span class="price">${Price.short(each)}</span></a></li>`,
  )}</ul>
${matching.length === 0 && html`<p>No route matches. <a href="/merchants/${slug}">Show all</a></p>`}
${Parts.pager('Further routes', { current, pages }, linkTo)}
</nav>`
}

function searchForm(slug: string, text: string): Html {
  return html`<form class="search" method="get" action="/merchants/${slug}" role="search">
<label class="hidden" for="q">Search the routes</label>
<input type="search" id="q" name="q" value="${text}" maxlength="100" autocomplete="off" placeholder="Search"><button>Search</button>
</form>`
}

type Chosen = {
  merchant: Merchant
  route: Route
  example: Example.Example
  values: Example.Values
  tool: string | undefined
  /** Why nothing can be paid for the route now, or ''. */
  closed: string
  live: SaleState.Facts
}

function routeSection(config: Config, chosen: Chosen): Html {
  const { merchant, route } = chosen
  const channels = channelsOf(config, chosen)
  const path = Example.pathOf(merchant.slug, route)
  return html`<section class="route" id="route" aria-labelledby="what">
<h2 id="what">${route.summary || path}</h2>
<p class="path">${route.methods.map((method) => html`<span class="method">${method}</span> `)}<code>${path}${tailOf(route)}</code></p>
<p>${route.description}</p>
<div class="columns">
<div class="ask">
${priceOf(config, merchant, route)}
${channels.length > 0 && html`<p class="hint">${ByChannel.sentence(route, channels)}</p>`}
${tryIt(config, chosen)}
</div>
<div class="code">
<div class="programs">
<h3 id="programs">In a program</h3>
${tabsOf(config, chosen)}
</div>
${answerOf(route)}
</div>
</div>
</section>`
}

/** The networks on which a program may pay for a route by a channel. */
function channelsOf({ networks }: Config, { merchant, route, live }: Chosen) {
  const own = ByChannel.takes(route, 'channel') ? Parts.networksOf(networks, merchant) : []
  return own.filter((network) => live.isReady(network) && live.hasChannels(network))
}

function tailOf(route: Route): string {
  return route.params
    .filter((param) => param.in === 'tail')
    .map(({ name, required, schema }) => {
      const braced = name.includes('{') ? name : `{${name}}`
      const shown = typeof schema.const === 'string' ? schema.const : braced
      return required ? `/${shown}` : `[/${shown}]`
    })
    .join('')
}

function priceOf({ service, networks }: Config, merchant: Merchant, route: Route): Html {
  const own = Parts.networksOf(networks, merchant)
  const coins = own.map(Parts.coinOn).join(', or ')
  const { meter } = route
  if (meter === undefined)
    return html`<p class="cost"><span class="price">${Price.short(route)}</span> ${Entitlements.unitOf(merchant, route) ?? 'for one request'}, in ${coins}.</p>
${given(networks, merchant, route)}`
  const byUse =
    ByUse.isOffered(service, merchant, route) &&
    html` A program that pays by the x402 scheme <code>upto</code> is charged for what the answer used, and never more.`
  // The sentence writes prices in the form of the price beside it.
  const sentence = Price.sentence(route).replace(/(\d+\.\d\d\d*?)0* USD/g, '$$$1')
  return html`<p class="cost"><span class="price">${Price.short(route)}</span> for one request, in ${coins}.</p>
<p>${sentence}${byUse}</p>
${ratesTable(meter, namesOf(route))}`
}

/** The buyer's names for values that the upstream calls differently. */
function namesOf({ rewrite }: Route): ReadonlyMap<string, string> {
  const pairs = Object.values(rewrite).flatMap((values) => Object.entries(values))
  return new Map(pairs.map(([name, upstream]) => [upstream, name]))
}

function form({ merchant, route, example, values }: Chosen): Html {
  const { slug } = merchant
  const fields = Example.fieldsOf(route, values.of)
  const hasBody = Example.takesBody(example.method)
  const isEmpty = isPlain(route) && route.methods.length === 1
  return html`<form class="compose" method="get" action="/merchants/${slug}#route" data-path="${Example.pathOf(slug, route)}">
<input type="hidden" name="route" value="${route.path}">
${route.methods.length > 1 && methodField(route.methods, example.method)}
${fields.map((field, at) => {
  const isAsked = field.param.in === 'tail' && Example.asksPath(route)
  return fieldOf(field, `p-${at}`, { isOff: field.isInBody && hasBody, isAsked })
})}
${route.methods.some(Example.takesBody) && bodyField(example.body, !hasBody)}
${!isEmpty && html`<button class="plain scriptless">Put these values into the commands</button>`}
</form>`
}

function methodField(methods: readonly Method[], chosen: Method): Html {
  return html`<div class="field"><label for="method">Method</label>
<select id="method" name="method">${methods.map((method) => option(method, chosen))}</select></div>`
}

/** `isOff`: the script hides the field, because the chosen method does not use it. */
function bodyField(body: string | undefined, isOff: boolean): Html {
  return html`<div class="field" data-of="body"${isOff && html` data-off`}><label for="body">Body <span class="quiet">JSON</span></label>
<textarea id="body" name="body" rows="5" spellcheck="false">${body ?? '{}'}</textarea></div>`
}

function option(value: string, chosen: string, text = value): Html {
  return html`<option value="${value}"${value === chosen && html` selected`}>${text}</option>`
}

type Shown = { isOff: boolean; isAsked: boolean }

function fieldOf(field: Example.Field, id: string, { isOff, isAsked }: Shown): Html {
  const { param, prefix, suffix, fixed, value, isInBody } = field
  const { name, required, schema, description } = param
  const data = html` data-in="${param.in}" data-name="${name}" data-prefix="${prefix}" data-suffix="${suffix}"`
  if (fixed !== undefined && param.in === 'tail')
    return html`<input type="hidden" value="${fixed}" data-fixed="${required ? 'required' : 'optional'}"${data}>`
  const hint = html` aria-describedby="${id}-hint"`
  const choices = choicesOf(schema)
  const isNumber = [schema.type].flat().some((type) => type === 'integer' || type === 'number')
  const control =
    choices === undefined
      ? html`<input id="${id}" name="p.${name}" value="${value}" spellcheck="false" autocomplete="off"${isNumber && html` inputmode="decimal"`}${isAsked && html` required`}${hint}${data}>`
      : html`<select id="${id}" name="p.${name}"${hint}${data}>${choices.map((choice) => option(choice, value, choice === '' ? 'not set' : choice))}</select>`
  const also = isInBody && html` data-of="query"${isOff && html` data-off`}`
  return html`<div class="field"${also}><label for="${id}"><code>${isAsked ? 'path' : name}</code> <span class="quiet">${required || isAsked ? 'required' : 'optional'}</span></label>
${control}
<p class="hint" id="${id}-hint">${description} ${factsOf(param)}</p></div>`
}

/** The values of a parameter that has few, with '' for one that can be left out. */
function choicesOf(schema: Param['schema']): string[] | undefined {
  const values = schema.type === 'boolean' ? [true, false] : schema.enum
  return Array.isArray(values) ? ['', ...values.map(String)] : undefined
}

/** The facts of a parameter's schema, in plain words. */
function factsOf({ schema, in: place }: Param): string {
  const { type, minimum, maximum } = schema
  const types = [type].flat().join(' or ').replace('array', 'comma list')
  const range = [
    typeof minimum === 'number' && `from ${minimum}`,
    typeof maximum === 'number' && `to ${maximum}`,
  ].filter((part) => part !== false)
  const facts = [
    place === 'tail' ? 'In the path' : '',
    type === undefined || types === 'string' ? '' : [types, ...range].join(' '),
  ].filter(Boolean)
  return facts.length === 0 ? '' : `(${facts.join(', ')})`
}

/** The fields of a request, the 402 that it gets, and the wallet that pays for it. */
function tryIt(config: Config, chosen: Chosen): Html {
  const { merchant, route, example, closed, live } = chosen
  const { method, target, body } = example
  const own = Parts.networksOf(config.networks, merchant)
  const ready = own.filter(live.isReady)
  // A payment that is kept may be of a network that is not ready now.
  const offers = (ready.length === 0 ? own : ready).map((network) =>
    route.meter === undefined ? { network, amountAtomic: route.priceAtomic } : { network },
  )
  const { service } = config
  const address = linkOf(merchant, route).replace(/#.*/, '')
  const page = [service.baseUrl, address] as const
  return html`<section class="try" id="try" aria-labelledby="try-title">
<h3 id="try-title">Try it</h3>
${form(chosen)}
<p class="request scriptless"><code>${Parts.breakable(target)}</code></p>
${walletPanel({ method, target, body: body ?? '', offers, seller: merchant.title, closed, page })}
<form class="asking"><span class="method">${method}</span><label class="hidden" for="target">Request</label><input id="target" name="target" value="${target}" spellcheck="false" autocomplete="off"><button class="plain">Ask for the price</button><p class="hint">Shows the terms of payment as programs see them. Nothing is paid.</p></form>
<div class="answer" aria-live="polite"></div>
</section>`
}

function tabsOf(config: Config, chosen: Chosen): Html {
  const { networks, service } = config
  const { merchant, route, example, tool } = chosen
  const { baseUrl } = service
  const network = Parts.sampleNetwork(Parts.networksOf(networks, merchant))
  const { priceAtomic } = route
  const [channel] = channelsOf(config, chosen)
  const terms = {
    ...{ baseUrl, network, priceAtomic, tool, signsIn: Entitlements.isGiven(route) },
    isExact: ByChannel.takes(route, 'exact'),
    depositAtomic: channel && ByChannel.leastDepositAtomic(route, channel),
  }
  const byMethod = route.methods.map((method) => {
    const shape = { method, hasBody: Example.takesBody(method) }
    return [method, Commands.templates(shape, terms)] as const
  })
  const tabs = Commands.of(example, terms).map((each, at) => ({
    ...each,
    templates: Object.fromEntries(
      byMethod.map(([method, templates]) => [method, templates[at]?.text ?? '']),
    ),
  }))
  return html`<div data-base="${baseUrl}">${commandTabs(tabs)}</div>`
}

function answerOf(route: Route): Html {
  const example = Example.answerOf(route)
  if (example !== undefined)
    return html`<h3>Example of the answer</h3>
<p class="hint">It shows the format; its figures are not current, and a real answer may have more members.</p>
<pre class="example" tabindex="0" aria-label="Example of the answer"><code>${example}</code></pre>`
  const types = [route.answer?.type ?? 'object'].flat().join(' or ')
  return html`<h3>The answer</h3>
<p>JSON (${types}), as the upstream sends it, with the header <code>Payment-Receipt</code> or <code>PAYMENT-RESPONSE</code>.</p>`
}

/** What the units of a meter cost, by model. `names`: the buyer's names of models. */
function ratesTable({ rates, models }: Meter, names: ReadonlyMap<string, string>): Html | false {
  const rows = [
    ...Object.entries(models),
    ...(Object.keys(rates).length === 0 ? [] : [['any other', rates] as const]),
  ]
  if (rows.length === 0) return false
  const units = [...new Set(rows.flatMap(([, each]) => Object.keys(each)))]
  const hasModels = Object.keys(models).length > 0
  return html`<div class="scroll" role="region" aria-label="Prices of units" tabindex="0"><table class="rates">
<thead><tr>${hasModels && html`<th scope="col">Model</th>`}${units.map((unit) => html`<th scope="col" class="number">${unit}</th>`)}</tr></thead>
<tbody>${rows.map(
    ([model, each]) =>
      html`<tr>${hasModels && html`<th scope="row">${names.get(model) ?? model}</th>`}${units.map((unit) => html`<td class="number">${rateText(each, unit)}</td>`)}</tr>`,
  )}</tbody>
</table></div>`
}

function rateText(rates: Rates, unit: string): string {
  const rate = rates[unit]
  if (rate === undefined) return '-'
  const price = Parts.dollars(rate.priceScaled, 12)
  return rate.per === 1 ? `$${price}` : `$${price} / ${roundNumber(rate.per)}`
}

/** `1M`, `1k`. */
function roundNumber(number: number): string {
  if (number % 1_000_000 === 0) return `${number / 1_000_000}M`
  return number % 1000 === 0 ? `${number / 1000}k` : String(number)
}
