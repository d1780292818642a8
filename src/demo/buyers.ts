import type { TransferMethod } from '../protocol/Asset'
import type * as Network from '../protocol/Network'
import type { DemoAccount } from './accounts'
import type { World } from './world'

/**
 * Purchases with stock clients, as they are in the registry. They are development dependencies: the
 * shipped executable does not contain them.
 */

/** One request and the head of its answer, as they were transmitted. */
export type Exchange = {
  method: string
  url: string
  headers: Headers
  status: number
  responseHeaders: Headers
}

export type Purchase = {
  /** Head of the last answer; its body has been read. */
  response: Response
  body: string
  /** Every request that the client made, the first one unpaid. */
  requests: readonly Exchange[]
}

type Challenged = { challenge: { request: Readonly<Record<string, unknown>> } }
type Buying = { init?: RequestInit | undefined }

/** Most that a stock client pays for one request, atomic. */
const maxAtomic = '2000000'

/**
 * Buys with mppx, which signs EIP-3009 authorizations. It pays the first challenge of the server,
 * unless `network` names another one. Throws the client's errors.
 */
export async function buyWithMppx(
  world: Pick<World, 'config'>,
  url: string,
  account: DemoAccount,
  options: Buying & { network?: Network.Id } = {},
): Promise<Purchase> {
  const { Mppx, evm, assets } = await loadMppx()
  const { network: wanted } = options
  const wire = recorder()
  const client = Mppx.create({
    methods: [
      evm.charge({
        account: account.local(),
        maxAtomicAmount: maxAtomic,
        // mppx has only the signing domain of USDC built in.
        currencies: world.config.networks.map(({ id, asset }) =>
          assets.define({
            address: asset.address,
            decimals: asset.decimals,
            network: id,
            transfer: { type: 'eip3009', ...asset.eip712 },
          }),
        ),
      }),
    ],
    fetch: wire.fetch,
    polyfill: false,
    ...(wanted && {
      orderChallenges: <T extends Challenged>(candidates: readonly T[]) =>
        candidates.filter(({ challenge }) => networkOf(challenge.request) === wanted),
    }),
  })
  return complete(await client.fetch(url, options.init), wire.requests)
}

/**
 * Buys with @x402/fetch on one network and with one transfer method, by the scheme `exact` or, with
 * the method `upto`, by that scheme. Throws the client's errors.
 */
export async function buyWithX402(
  world: Pick<World, 'config'>,
  url: string,
  account: DemoAccount,
  options: Buying & { network: Network.Id; method: TransferMethod | 'upto' },
): Promise<Purchase> {
  const { wrapFetchWithPayment, x402Client, ExactEvmScheme, UptoEvmScheme } = await loadX402()
  const { network, method } = options
  const asset = world.config.networks.find(({ id }) => id === network)?.asset
  if (asset === undefined) throw new Error(`${network} is not configured`)
  const isUpto = method === 'upto'
  const client = new x402Client()
    // The client pays by no scheme that is not registered.
    .register(network, new (isUpto ? UptoEvmScheme : ExactEvmScheme)(account.local()))
    .registerPolicy((_, offers) =>
      isUpto ? offers : offers.filter(({ extra }) => extra?.assetTransferMethod === method),
    )
    // By default the client pays only in its built-in tokens, up to a dollar.
    .setSpendControls({
      allowedAssets: [{ network, asset: asset.address, maxAmountPerPayment: maxAtomic }],
    })
  const wire = recorder()
  const buy = wrapFetchWithPayment(wire.fetch, client)
  return complete(await buy(url, options.init), wire.requests)
}

/**
 * Buys the same request many times over a payment channel with @x402/fetch, which deposits at first, and
 * gets the rest back. Throws the client's errors.
 */
export async function buyByChannel(
  world: Pick<World, 'config'>,
  url: string,
  account: DemoAccount,
  { network, requests }: { network: Network.Id; requests: number },
) {
  const { wrapFetchWithPayment, x402Client } = await loadX402()
  const { BatchSettlementEvmScheme } = await loadChannels()
  const asset = world.config.networks.find(({ id }) => id === network)?.asset
  if (asset === undefined) throw new Error(`${network} is not configured`)
  const scheme = new BatchSettlementEvmScheme(account.local())
  const client = new x402Client().register(network, scheme).setSpendControls({
    allowedAssets: [{ network, asset: asset.address, maxAmountPerPayment: maxAtomic }],
  })
  const answers: Response[] = []
  const buy = wrapFetchWithPayment(fetch, client)
  for (let n = 0; n < requests; n++) {
    const response = await buy(url)
    await response.arrayBuffer()
    answers.push(response)
  }
  return { answers, refund: await scheme.refund(url) }
}

/**
 * Gets what a wallet has without a further payment, by the sign-in of @x402/extensions. It pays
 * nothing. Throws the client's errors.
 */
export async function signInWithX402(url: string, account: DemoAccount): Promise<Purchase> {
  const { wrapFetchWithSIWx } = await loadSignIn()
  const wire = recorder()
  const get = wrapFetchWithSIWx(wire.fetch, account.local())
  return complete(await get(url), wire.requests)
}

/** Throws when the clients are not installed. */
export async function assertClients(): Promise<void> {
  await Promise.all([loadMppx(), loadX402(), loadSignIn(), loadChannels()])
}

async function loadMppx() {
  const { Mppx } = await installed(() => import('mppx/client'))
  const { charge, assets } = await installed(() => import('mppx/evm/client'))
  return { Mppx, evm: { charge }, assets }
}

async function loadX402() {
  const { wrapFetchWithPayment, x402Client } = await installed(() => import('@x402/fetch'))
  const { ExactEvmScheme } = await installed(() => import('@x402/evm/exact/client'))
  const { UptoEvmScheme } = await installed(() => import('@x402/evm/upto/client'))
  return { wrapFetchWithPayment, x402Client, ExactEvmScheme, UptoEvmScheme }
}

function loadSignIn() {
  return installed(() => import('@x402/extensions/sign-in-with-x'))
}

function loadChannels() {
  return installed(() => import('@x402/evm/batch-settlement/client'))
}

async function installed<T>(load: () => Promise<T>): Promise<T> {
  try {
    return await load()
  } catch (error) {
    throw new Error(
      'demo --once buys with mppx and @x402/fetch, which are not part of the executable: ' +
        `run "npx --yes bun@${Bun.version} run demo --once" in a checkout of the project`,
      { cause: error },
    )
  }
}

function recorder() {
  const requests: Exchange[] = []
  const record = async (input: string | URL | Request, init?: RequestInit) => {
    const request =
      input instanceof Request ? new Request(input, init) : new Request(`${input}`, init)
    const { method, url } = request
    const headers = new Headers(request.headers)
    const response = await fetch(request)
    const responseHeaders = new Headers(response.headers)
    requests.push({ method, url, headers, status: response.status, responseHeaders })
    return response
  }
  return { requests, fetch: Object.assign(record, { preconnect: fetch.preconnect }) }
}

async function complete(response: Response, requests: readonly Exchange[]): Promise<Purchase> {
  return { response, body: await response.text(), requests }
}

function networkOf(request: Readonly<Record<string, unknown>>): string | undefined {
  const { methodDetails } = request
  if (typeof methodDetails !== 'object' || methodDetails === null) return undefined
  return 'chainId' in methodDetails ? `eip155:${methodDetails.chainId}` : undefined
}
