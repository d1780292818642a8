import type { Address } from 'viem'
import { type Client, createClient, RpcFault } from '../../chain/client'
import * as Multicall from '../../chain/multicall'
import * as Receipt from '../../chain/receipt'
import * as StockToken from '../../chain/stock-token'
import * as Token from '../../chain/token'
import * as Uniswap from '../../chain/uniswap'
import type { Config, Merchant, NetworkConfig, Route, Stock } from '../../config/Config'
import type { Path } from '../../config/lines'
import * as Routes from '../../gateway/Route'
import { probe, refusing } from '../../gateway/upstream/refusals'
import { createUpstream } from '../../gateway/upstream/upstream'
import type * as Preset from '../../meter/Preset'
import * as Ip from '../../net/Ip'
import { readText } from '../../net/read-text'
import { createResolver, type Resolve } from '../../net/resolve'
import { takes } from '../../paywall/offer/ByChannel'
import * as ByUse from '../../paywall/usage/ByUse'
import * as Abi from '../../protocol/Abi'
import * as AddressText from '../../protocol/Address'
import * as Amount from '../../protocol/Amount'
import * as Channel from '../../protocol/Channel'
import * as Permit from '../../protocol/Permit'
import * as Upto from '../../protocol/Upto'
import { usualGasOf } from '../../settlement/state/availability'
import { etherText, isPoor, remedyOf } from '../../settlement/state/out-of-gas'
import { askNodes, readWord } from '../nodes'
import { readHead } from './gas-cost'

/**
 * A difference between the file and a chain or an upstream, and the entry that it concerns. It has no
 * URL, which may be secret.
 */
export type Finding = { path: Path; message: string }

type OnlineOptions = {
  /** Unix ms. */
  now: () => number
  /** Addresses of a host name; the system's resolver by default. */
  resolve?: Resolve
}

const timeoutMs = 10_000
const listMaxBytes = 16 * 1024 * 1024

/**
 * Checks every RPC URL, every contract that the file names or implies, every pool and every
 * upstream, concurrently. Writes nothing. Never rejects.
 */
export async function findOnline(config: Config, options: OnlineOptions): Promise<Finding[]> {
  const resolve = createResolver(options)
  const found = await Promise.all([
    ...config.networks.map((network) => ofNetwork(config, network)),
    ...upstreamsOf(config).map((upstream) => ofUpstream(upstream, resolve)),
  ])
  return found.flat()
}

async function ofNetwork(config: Config, network: NetworkConfig): Promise<Finding[]> {
  const path = ['networks', network.id]
  const found: Finding[] = []
  const asked: Promise<Finding | undefined>[] = network.rpcUrls.map((url, index) =>
    ofRpc(network, url, [...path, 'rpc_urls', index]),
  )
  if (network.wsUrl !== '') asked.push(ofSocket(network, network.wsUrl, [...path, 'ws_url']))
  const verdicts = await Promise.all(asked)
  const good = network.rpcUrls.filter((_, index) => verdicts[index] === undefined)
  found.push(...verdicts.filter((finding) => finding !== undefined))
  if (good.length === 0) return found
  const client = createClient({ urls: good, timeoutMs, log: () => undefined })
  try {
    found.push(...(await ofContracts(client, network, config.stock)))
  } catch (error) {
    if (!(error instanceof RpcFault)) throw error
    const message = `the contracts of ${network.id} could not be read: ${error.message}`
    found.push({ path, message })
  } finally {
    client.close()
  }
  return found
}

async function ofRpc(network: NetworkConfig, url: string, path: Path) {
  const name = `rpc_urls[${path.at(-1)}] of ${network.id}`
  const chainId = await askNodes([url], (client) => client.call('eth_chainId', []))
  if (chainId === undefined) return { path, message: `${name}: no answer to eth_chainId` }
  if (chainId === `0x${network.chainId.toString(16)}`) return undefined
  const shown = typeof chainId === 'string' && /^0x[0-9a-f]{1,16}$/.test(chainId)
  const found = shown ? `the chain id is ${BigInt(chainId)}` : 'the answer is not a chain id'
  return { path, message: `${name}: ${found}, not ${network.chainId}` }
}

async function ofSocket(network: NetworkConfig, url: string, path: Path) {
  const message = `ws_url of ${network.id}: no answer to eth_chainId`
  const answer = await new Promise<string>((resolve) => {
    const socket = new WebSocket(url)
    const timer = setTimeout(() => end(''), timeoutMs)
    const end = (text: string) => {
      clearTimeout(timer)
      resolve(text)
      socket.close()
    }
    socket.onopen = () => socket.send('{"jsonrpc":"2.0","id":1,"method":"eth_chainId","params":[]}')
    socket.onmessage = ({ data }) => end(`${data}`)
    socket.onerror = () => end('')
    socket.onclose = () => end('')
  })
  if (answer.includes(`"0x${network.chainId.toString(16)}"`)) return undefined
  return { path, message: answer === '' ? message : `ws_url of ${network.id}: another chain` }
}

/** A read of one contract, with the check of its answer. */
type Probe = {
  path: Path
  /** Name of the contract, for messages. */
  name: string
  call: Multicall.Call
  /** The fault of the first word of the answer; undefined when it is right. */
  check: (word: string) => string | undefined
  /** Whether the right answer is empty. */
  isSilent?: true
}

async function ofContracts(
  client: Client,
  network: NetworkConfig,
  stock: Stock | undefined,
): Promise<Finding[]> {
  const path = ['networks', network.id]
  const assetPath = [...path, 'asset', 'address']
  // Reads of these contracts would look the same without any code.
  const codes: [string, Address, Path][] = [['Multicall3', Multicall.multicallAddress, path]]
  if (network.asset.transfer.includes('permit2'))
    codes.push(['x402ExactPermit2Proxy', Permit.proxyAddress, [...path, 'asset', 'transfer']])
  const missing = (await withoutCode(client, codes)).map(([name, address, at]): Finding => {
    return { path: at, message: `${name}: no contract at ${address} on ${network.id}` }
  })
  if (missing.some(({ path: at }) => at === path)) return missing
  const probes = [
    ...assetProbes(network, assetPath),
    ...(stock !== undefined && stock.network === network.id ? stockProbes(network, stock) : []),
  ]
  const reads = Multicall.aggregate(probes.map(({ call }) => call))
  const answer = await client.call('eth_call', [reads, 'latest'])
  const results = Multicall.parseResults(answer, probes.length)
  if (results === undefined) throw new RpcFault('Multicall3 returns no results')
  return [
    ...missing,
    ...probes.flatMap(({ path: at, name, call, check, isSilent }, index): Finding[] => {
      const result = results[index]
      if (isSilent && result?.success) return []
      const word = result?.success ? Abi.wordAt(result.data.slice(2), 0) : undefined
      const fault =
        word === undefined ? `no such contract at ${call.to} on ${network.id}` : check(word)
      return fault === undefined ? [] : [{ path: at, message: `${name}: ${fault}` }]
    }),
  ]
}

function reading(path: Path, name: string, call: Multicall.Call, check: Probe['check']): Probe {
  return { path, name, call, check }
}

function assetProbes({ asset, chainId }: NetworkConfig, path: Path): Probe[] {
  const { symbol, address, decimals, eip712 } = asset
  const separator = Abi.domainSeparator(chainId, address, eip712)
  const at = (key: string) => [...path.slice(0, -1), key]
  const probes = [
    reading(path, symbol, StockToken.decimals(address), (word) => {
      const found = Abi.uintAt(word)
      return found === BigInt(decimals) ? undefined : `it has ${found} decimals, not ${decimals}`
    }),
    reading(at('eip712'), symbol, Token.domainSeparator(address), (word) =>
      word === separator
        ? undefined
        : `DOMAIN_SEPARATOR is not that of "${eip712.name}" "${eip712.version}"`,
    ),
  ]
  if (!asset.transfer.includes('permit2')) return probes
  const ofPermit2 = Token.domainSeparator(Permit.permit2Address)
  const permit2 = reading(at('transfer'), 'Permit2', ofPermit2, (word) =>
    word === Permit.domainSeparator(chainId) ? undefined : 'DOMAIN_SEPARATOR is another one',
  )
  return [...probes, permit2]
}

function stockProbes({ asset }: NetworkConfig, stock: Stock): Probe[] {
  const { factory, router, quoter, registry } = stock
  const isFactory = (word: string) =>
    isAddress(word, factory) ? undefined : `its factory is ${addressIn(word)}`
  const change = Uniswap.changeCall(router, asset.address)
  const unused = Token.authorizationState(asset.address, asset.address, `0x${Abi.uint(0)}`)
  const isBlocked = StockToken.isBlocked(registry, asset.address)
  return [
    reading(['stock', 'router'], 'router', Uniswap.factoryOf(router), isFactory),
    // A router of another kind would turn every order into a refund.
    { ...reading(['stock', 'router'], 'router, sweepToken', change, isRight), isSilent: true },
    // Without EIP-3009, swaps and refunds move no money.
    reading(['stock', 'network'], `${asset.symbol}, EIP-3009`, unused, (word) =>
      Abi.uintAt(word) === 0n ? undefined : 'authorizationState() is not false',
    ),
    reading(['stock', 'quoter'], 'quoter', Uniswap.factoryOf(quoter), isFactory),
    reading(['stock', 'registry'], 'registry', isBlocked, (word) =>
      StockToken.parseFlag(`0x${word}`) === undefined
        ? 'isBlocked does not answer yes or no'
        : undefined,
    ),
    ...stock.tokens.flatMap((token, index) => tokenProbes(asset, factory, token, index)),
  ]
}

/** Any answer is right. */
const isRight = () => undefined

function tokenProbes(
  asset: NetworkConfig['asset'],
  factory: Address,
  { symbol, address, pool, fee, feed }: Stock['tokens'][number],
  index: number,
): Probe[] {
  const at = (key: string) => ['stock', 'tokens', index, key]
  const [first, second] = Uniswap.isFirst(address, asset.address)
    ? ([address, asset.address] as const)
    : ([asset.address, address] as const)
  const [token0, token1, feeOf] = Uniswap.identityOf(pool)
  const holds = (expected: Address) => (word: string) =>
    isAddress(word, expected) ? undefined : `the pool has ${addressIn(word)}, not ${expected}`
  const named = Uniswap.getPool(factory, asset.address, address, fee)
  const probes = [
    reading(at('address'), symbol, StockToken.decimals(address), (word) =>
      Number(Abi.uintAt(word)) <= 36 ? undefined : 'decimals() is not a number up to 36',
    ),
    reading(at('pool'), `${symbol}: factory`, named, (word) =>
      isAddress(word, pool)
        ? undefined
        : `its pool of ${asset.symbol}, ${symbol} and ${fee} is ${addressIn(word)}, not ${pool}`,
    ),
    reading(at('pool'), symbol, token0, holds(first)),
    reading(at('pool'), symbol, token1, holds(second)),
    reading(at('fee'), symbol, feeOf, (word) =>
      Abi.uintAt(word) === BigInt(fee)
        ? undefined
        : `the fee of the pool is ${Abi.uintAt(word)}, not ${fee}`,
    ),
  ]
  if (feed === undefined) return probes
  const call = StockToken.latestRoundData(feed)
  return [...probes, reading(at('feed'), `${symbol}: feed`, call, isRight)]
}

function isAddress(word: string, expected: Address): boolean {
  const found = Abi.addressAt(word)
  return found !== undefined && AddressText.equal(found, expected)
}

function addressIn(word: string): string {
  return Abi.addressAt(word) ?? 'not an address'
}

type Upstream = { url: URL; allowPrivate: boolean; name: string; path: Path }

/** Each origin once, at its first place in the file. */
function upstreamsOf({ merchants }: Config): Upstream[] {
  const found = new Map<string, Upstream>()
  const add = (url: URL | undefined, upstream: Omit<Upstream, 'url'>) => {
    if (url !== undefined && !found.has(url.origin)) found.set(url.origin, { ...upstream, url })
  }
  for (const [index, merchant] of merchants.entries()) {
    const { slug, upstream, routes, outOfService, allowPrivate } = merchant
    if (outOfService !== undefined) continue
    const path = ['merchants', index]
    add(upstream, { allowPrivate, name: slug, path: [...path, 'upstream'] })
    for (const [number, route] of routes.entries()) {
      const at = [...path, 'routes', number, 'upstream']
      add(route.upstream, { allowPrivate, name: slug + route.path, path: at })
    }
  }
  return [...found.values()]
}

/** Any HTTP answer shows that the upstream is reachable. */
async function ofUpstream(upstream: Upstream, resolve: Resolve): Promise<Finding[]> {
  const { url, name, path, allowPrivate } = upstream
  const fault = (message: string) => [{ path, message: `upstream of ${name}: ${message}` }]
  try {
    const hostname = url.hostname.replace(/^\[|\]$/g, '')
    const addresses = await resolve(hostname)
    if (!allowPrivate && !addresses.some(Ip.isPublic))
      return fault('its name leads to a private address only; set allow_private = true to allow it')
  } catch {
    return fault('its name cannot be resolved')
  }
  try {
    const signal = AbortSignal.timeout(timeoutMs)
    await fetch(url, { method: 'HEAD', redirect: 'manual', signal })
    return []
  } catch {
    return fault('no answer')
  }
}

/** Merchants whose upstream refuses the example of their first route, as it does with a wrong key. */
export async function findRefused(
  { merchants }: Pick<Config, 'merchants'>,
  options: OnlineOptions,
): Promise<Finding[]> {
  const upstream = createUpstream(options)
  const { all } = Routes.compile(merchants)
  const found = merchants.map(async (merchant, index): Promise<Finding[]> => {
    const match = all.find((each) => each.merchant === merchant)
    if (match?.target === undefined || merchant.outOfService !== undefined) return []
    const status = await probe(upstream, match)
    if (status === undefined || !refusing.has(status)) return []
    const path = ['merchants', index, 'routes', merchant.routes.indexOf(match.route)]
    const what = `${match.route.path} of ${merchant.slug}`
    return [{ path, message: `the upstream answers ${status} to ${what}: is its key right?` }]
  })
  return (await Promise.all(found)).flat()
}

/** Which of these contracts have no code; each begins with its name and its address. */
async function withoutCode<Contract extends readonly [string, string, ...unknown[]]>(
  client: Client,
  contracts: readonly Contract[],
): Promise<Contract[]> {
  const codes = await Promise.all(
    contracts.map(([, address]) => client.call('eth_getCode', [address, 'latest'])),
  )
  return contracts.filter((_, index) => String(codes[index] ?? '0x').length <= 2)
}

/** Addresses of our accounts: `relayers` send on every network, `desk` on that of the stock desk. */
export type Accounts = { relayers: readonly Address[]; desk: Address | undefined }

/**
 * Relayers that cannot pay for gas, each with the amount to send. A network that does not answer has
 * none, because another check reports it. Never rejects.
 */
export async function findUnfunded(config: Config, accounts: Accounts): Promise<Finding[]> {
  const { relayers, desk } = accounts
  const found = config.networks.map((network) => {
    const isDesk = desk !== undefined && config.stock?.network === network.id
    return poorOn(network, isDesk ? [...relayers, desk] : relayers)
  })
  return (await Promise.all(found)).flat()
}

async function poorOn(network: NetworkConfig, addresses: readonly Address[]): Promise<Finding[]> {
  if (addresses.length === 0) return []
  const head = await readHead(network)
  if (head === undefined) return []
  const balances = await askNodes(network.rpcUrls, ({ call }) => {
    const read = (address: Address) => call('eth_getBalance', [address, 'latest'])
    return Promise.all(addresses.map((address) => read(address).catch(() => undefined)))
  })
  return addresses.flatMap((address, index): Finding[] => {
    const balance = balances?.[index]
    if (!Receipt.isHex(balance)) return []
    const balanceWei = BigInt(balance)
    if (!isPoor(balanceWei, head, network.feeCapWei)) return []
    const remedy = remedyOf({ address, balanceWei }, network, head, usualGasOf(network))
    const held = etherText(balanceWei, network)
    const message = `relayer ${address} holds ${held}, too little for gas: ${remedy}`
    return [{ path: ['networks', network.id], message }]
  })
}

/**
 * What the account of refunds holds on each network, a line each. A network that does not answer has
 * none, because another check reports it. Never rejects.
 */
export async function readRefundMoney(config: Config, account: Address): Promise<string[]> {
  const found = config.networks.map(async ({ name, rpcUrls, asset }): Promise<string[]> => {
    const { symbol, address, decimals, transfer } = asset
    if (!transfer.includes('eip3009'))
      return [`refunds    none on ${name}: ${symbol} has no EIP-3009`]
    const read = Token.balanceOf(address, account)
    const held = await askNodes(rpcUrls, (client) => readWord(client, read))
    return held === undefined
      ? []
      : [`refunds    the account has ${Amount.toDecimal(held, decimals)} ${symbol} on ${name}`]
  })
  return (await Promise.all(found)).flat()
}

/**
 * Models of the tables that their upstreams do not list. Their prices have no use, and requests for
 * them fail. A list that cannot be read is ignored. Never rejects.
 */
export async function findMissingModels(config: Config): Promise<Finding[]> {
  const lists = new Map<string, Promise<ReadonlySet<string> | undefined>>()
  const found = config.merchants.flatMap((merchant, i) =>
    merchant.routes.map(async (route, j): Promise<Finding[]> => {
      const url = merchant.outOfService === undefined ? listUrl(merchant, route) : undefined
      if (url === undefined) return []
      const asked = lists.get(url) ?? readList(url, merchant.headers)
      lists.set(url, asked)
      const listed = await asked
      const names = Object.keys(route.meter?.models ?? {})
      return names
        .filter((name) => listed !== undefined && !listed.has(name))
        .map((name) => ({
          path: ['merchants', i, 'routes', j, 'meter', 'models', name],
          message: `the upstream of ${merchant.slug} does not list the model ${name}`,
        }))
    }),
  )
  return (await Promise.all(found)).flat()
}

/** The end of a service's path, and the end that names its list of models. */
const endings: Partial<Readonly<Record<Preset.Name, readonly [RegExp, string]>>> = {
  openai: [/\/(?:chat\/completions|completions|responses)$/, '/models'],
  anthropic: [/\/messages$/, '/models?limit=1000'],
  gemini: [/\/models(?:\/.*)?$/, '/models?pageSize=1000'],
}

function listUrl(merchant: Merchant, { meter, upstream, upstreamPath }: Route): string | undefined {
  const base = upstream ?? merchant.upstream
  const ending = meter === undefined ? undefined : endings[meter.preset]
  if (base === undefined || meter === undefined || ending === undefined) return undefined
  const [end, list] = ending
  if (Object.keys(meter.models).length === 0 || !end.test(upstreamPath)) return undefined
  return base.origin + upstreamPath.replace(end, list)
}

async function readList(
  url: string,
  headers: Readonly<Record<string, string>>,
): Promise<ReadonlySet<string> | undefined> {
  try {
    const signal = AbortSignal.timeout(timeoutMs)
    const response = await fetch(url, { headers, redirect: 'manual', signal })
    if (!response.ok) return undefined
    const answer = JSON.parse(await readText(response, listMaxBytes))
    const entries: unknown = answer?.data ?? answer?.models
    if (!Array.isArray(entries)) return undefined
    const names = entries.flatMap((entry) => [entry?.id, entry?.canonical_slug, entry?.name])
    const texts = names.filter((name) => typeof name === 'string')
    return new Set(texts.map((name) => name.replace(/^models\//, '')))
  } catch {
    return undefined
  }
}

/**
 * The reasons that the chains show: networks without the contracts of a scheme that is sold there. A
 * chain that does not answer is reported by another check. Never rejects.
 */
export async function findMissingProxies(config: Config): Promise<Finding[]> {
  const found = config.networks.map(async (network) => {
    const sellers = config.merchants.filter(({ networks }) => networks.includes(network.id))
    const isSold = (isOf: (route: Route, merchant: Merchant) => boolean) =>
      sellers.some((merchant) => merchant.routes.some((route) => isOf(route, merchant)))
    const byUse = isSold((route, merchant) => ByUse.isOffered(config.service, merchant, route))
    const byChannel = network.channels !== undefined && isSold((route) => takes(route, 'channel'))
    return [
      ...(byUse ? await missingOn(network, 'upto', uptoContracts) : []),
      ...(byChannel ? await missingOn(network, 'channel', channelContracts) : []),
    ]
  })
  return (await Promise.all(found)).flat()
}

const uptoContracts = [
  ['x402UptoPermit2Proxy', Upto.proxyAddress],
  ['Permit2', Permit.permit2Address],
] as const

const channelContracts = [
  ['x402BatchSettlement', Channel.settlementAddress],
  ['ERC3009DepositCollector', Channel.eip3009CollectorAddress],
  ['Permit2DepositCollector', Channel.permit2CollectorAddress],
] as const

async function missingOn(
  { id, rpcUrls }: NetworkConfig,
  scheme: string,
  contracts: readonly (readonly [name: string, address: Address])[],
): Promise<Finding[]> {
  const missing = await askNodes(rpcUrls, (client) => withoutCode(client, contracts))
  return (missing ?? []).map(([name, address]) => ({
    path: ['networks', id],
    message: `${name}: no contract at ${address} on ${id}: nothing is sold by ${scheme} there`,
  }))
}
