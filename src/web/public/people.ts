import type { Config, Merchant, NetworkConfig, Route } from '../../config/Config'
import { searchOf, splitUrl } from '../../http/url'
import * as Entitlements from '../../paywall/entitlement/Entitlements'
import * as ByChannel from '../../paywall/offer/ByChannel'
import * as Channel from '../../protocol/Channel'
import * as Json from '../../protocol/Json'
import * as X402 from '../../protocol/X402'
import { type Html, html } from '../html'
import * as Parts from '../parts'
import * as Commands from './Commands'
import * as Example from './Example'
import { layout, pageHeaders } from './layout'
import { commandTabs, given, walletPanel } from './panel'

type Priced = { network: NetworkConfig; amountAtomic: bigint }

/**
 * The same answer with a page as its body, when it is a problem: the status and the headers stay, so
 * the page of a 402 has its challenges, too. The address of a merchant leads to its page, which
 * asks for the path where any is sold. Other answers are returned as they are.
 */
export async function forPeople(
  config: Config,
  request: Request,
  response: Response,
): Promise<Response> {
  if (response.headers.get('content-type') !== 'application/problem+json') return response
  const { merchant, isWhole } = merchantAt(config, request)
  const isOpen = merchant?.routes.some(Example.asksPath)
  if (isWhole && (response.status === 404 || (response.status === 402 && isOpen)) && merchant)
    return new Response(null, { status: 302, headers: { location: `/merchants/${merchant.slug}` } })
  const problem = Json.parse(await response.text())
  if (!Json.isObject(problem)) return response
  const offers = offersOf(config.networks, problem, 'exact')
  const main =
    offers.length === 0
      ? problemPage(namingPages(problem, merchant), merchant)
      : paywallPage(config, problem, { request, merchant, offers })
  const isPayable = offers.length > 0
  const page = { title: textOf(problem, 'title'), path: undefined, main, isPayable }
  const headers = new Headers(response.headers)
  headers.delete('content-length')
  for (const [name, value] of Object.entries(pageHeaders(config.service))) headers.set(name, value)
  return new Response(layout(config, page), { status: response.status, headers })
}

/** The merchant whose address was opened, and whether the address is the merchant's own. */
function merchantAt({ merchants }: Config, { url }: Request) {
  const [, slug, rest] = /^\/m\/([^/]+)(\/.*)?$/.exec(splitUrl(url)[0]) ?? []
  const merchant = merchants.find((each) => each.slug === slug)
  return { merchant, isWhole: rest === undefined || rest === '/' }
}

type Paywall = { request: Request; merchant: Merchant | undefined; offers: readonly Priced[] }

/** The offer of an address, and the ways to pay for it. */
function paywallPage(
  { service, networks }: Config,
  problem: Json.JsonObject,
  { request, merchant, offers }: Paywall,
): Html {
  const target = targetOf(request)
  const resource = Json.member(X402.inBody(problem), 'resource')
  const description = Json.isObject(resource) ? textOf(resource, 'description') : ''
  const [first] = offers
  const network = Parts.sampleNetwork(offers.map((offer) => offer.network))
  const priceAtomic = first?.amountAtomic ?? 0n
  const route = merchant && routeAt(merchant, request)
  const unit = merchant && route && Entitlements.unitOf(merchant, route)
  const channels = offersOf(networks, problem, Channel.scheme).map((offer) => offer.network)
  const [channel] = channels
  const commands = Commands.of(
    { method: 'GET', target, body: undefined },
    {
      ...{ baseUrl: service.baseUrl, network, priceAtomic },
      depositAtomic: channel && ByChannel.leastDepositAtomic({ priceAtomic }, channel),
      signsIn: route !== undefined && Entitlements.isGiven(route),
    },
  )
  const faults = faultsOf(problem, merchant && formOf(merchant, request, route))
  // A request that would be refused is not sold, but the answer of a kept payment can be fetched.
  return html`<div class="paywall${faults !== false && ' faulty'}">
<div class="head">
<p class="quiet">${
    merchant === undefined
      ? service.title
      : html`<a href="/merchants/${merchant.slug}">${merchant.title}</a>`
  } sells this ${route?.passOf === undefined ? 'answer' : 'pass'}</p>
<h1>${description || 'A paid answer'}</h1>
<p class="cost"><span class="price">$${Parts.dollars(priceAtomic)}</span> ${unit ?? 'for one request'}, in ${offers.map((offer) => Parts.coinOn(offer.network)).join(', or ')}.</p>
${merchant && route && given(networks, merchant, route)}
${faults}
<p class="request"><span class="method">GET</span> <code>${Parts.breakable(target)}</code></p>
</div>
<section class="checkout" aria-labelledby="pay"><h2 id="pay">Pay with a wallet</h2>
${walletPanel({ method: 'GET', target, body: '', offers, seller: merchant?.title ?? service.title, closed: '', page: [service.baseUrl, target] })}
</section>
${
  faults === false &&
  html`<section class="programs" aria-labelledby="programs"><h2 id="programs">Or pay from a program</h2>
${channels.length > 0 && html`<p class="hint">${ByChannel.sentence({ priceAtomic }, channels)}</p>`}
${commandTabs(commands.filter(({ pays }) => pays))}
</section>`
}
</div>
<p><a href="/">All that is sold here</a></p>`
}

/** The route of an address, with the longest path. */
function routeAt({ slug, routes }: Merchant, { url }: Request): Route | undefined {
  const path = splitUrl(url)[0].slice(`/m/${slug}`.length)
  return routes
    .filter((each) => path === each.path || path.startsWith(`${each.path}/`))
    .sort((a, b) => b.path.length - a.path.length)[0]
}

/** Where the values of a request can be entered. */
function formOf(
  merchant: Merchant,
  { url }: Request,
  route: Route | undefined,
): string | undefined {
  if (route === undefined) return undefined
  const path = splitUrl(url)[0].slice(`/m/${merchant.slug}`.length)
  const values = new URLSearchParams({ route: route.path })
  // The form shows the values of the query. Values in the path are not read, so it shows examples.
  if (path === route.path)
    for (const [name, value] of new URLSearchParams(searchOf(url)))
      values.append(`p.${name}`, value)
  return `/merchants/${merchant.slug}?${values.toString()}#try`
}

/** The faults of a request. `form`: the address at which a person corrects them. */
function faultsOf(problem: Json.JsonObject, form?: string): Html | false {
  const faults = Json.member(problem, 'invalidParams')
  if (!Array.isArray(faults) || faults.length === 0) return false
  return html`<div class="notice bad"><p>This request cannot be served as it is, and nothing is charged:</p>
<ul>${faults.map((fault) =>
    Json.isObject(fault)
      ? html`<li><code>${textOf(fault, 'name')}</code>: ${textOf(fault, 'reason')}</li>`
      : undefined,
  )}</ul>${form !== undefined && html`<p><a class="button" href="${form}">Correct the values in a form</a></p>`}</div>`
}

/** A problem whose `detail` names pages; that of a 404 for programs names documents. */
function namingPages(problem: Json.JsonObject, merchant?: Merchant): Json.JsonObject {
  if (textOf(problem, 'code') !== 'not-found') return problem
  const detail =
    merchant === undefined
      ? 'There is nothing at this address. The catalogue has all that is sold here.'
      : `${merchant.title} sells nothing at this address. Its page has all that it sells.`
  return { ...problem, detail }
}

/** A problem, and where to go from it. */
export function problemPage(problem: Json.JsonObject, merchant?: Merchant): Html {
  const id = textOf(problem, 'requestId')
  return html`<div class="problem">
<p class="status" aria-hidden="true">${textOf(problem, 'status')}</p>
<h1>${textOf(problem, 'title')}</h1>
<p class="lead">${textOf(problem, 'detail')}</p>
${faultsOf(problem)}
<p class="actions">${
    merchant !== undefined &&
    html`<a class="button" href="/merchants/${merchant.slug}">See what ${merchant.title} sells</a> `
  }<a class="button${merchant === undefined ? '' : ' plain'}" href="/">See all that is sold here</a></p>
<p class="quiet">Code <code>${textOf(problem, 'code')}</code>${id !== '' && html`, request <code>${id}</code>`}</p>
</div>`
}

/** The offers of a scheme whose network and asset are configured, one for each network. */
function offersOf(
  networks: Config['networks'],
  problem: Json.JsonObject,
  scheme: X402.Requirements['scheme'],
): Priced[] {
  const accepts = Json.member(X402.inBody(problem), 'accepts')
  if (!Array.isArray(accepts)) return []
  return networks.flatMap((network) => {
    const own = accepts.find(
      (each) =>
        Json.isObject(each) &&
        each.scheme === scheme &&
        each.network === network.id &&
        textOf(each, 'asset').toLowerCase() === network.asset.address.toLowerCase(),
    )
    if (!Json.isObject(own)) return []
    return [{ network, amountAtomic: Json.read(own, 'amount', 'uint') }]
  })
}

function textOf(object: Json.JsonObject, name: string): string {
  const value = Json.member(object, name)
  return typeof value === 'string' || typeof value === 'number' ? String(value) : ''
}

/** Path and query, as the client wrote them. */
function targetOf({ url }: Request): string {
  return url.replace(/^https?:\/\/[^/?#]*/, '') || '/'
}
