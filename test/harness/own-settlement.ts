import type { Payment, Purpose } from '../../db/Payment'
import type { NetworkConfig } from '../../src/config/Config'
import { balanceOf } from '../../src/demo/chains'
import type * as Transfer from '../../src/protocol/Transfer'
import {
  networkOf,
  payee,
  type RpcCall,
  type SettlementFixture,
  startFixture,
  startNetwork,
  temporary,
  until,
} from './settlement'

type FixtureOptions = Parameters<typeof startFixture>[2]

/**
 * A chain, a tap before it, a data directory and a settlement over them, for one test alone. Most
 * of a test's time is waiting, and tests without shared state can wait concurrently.
 */
export type OwnSettlement = AsyncDisposable & {
  net: Awaited<ReturnType<typeof startNetwork>>
  network: NetworkConfig
  dataDir: string
  /** The settlement that was opened last. */
  fixture: SettlementFixture
  /** Starts a settlement over the same data; the one before has ended. */
  open(changes?: Partial<NetworkConfig>, options?: FixtureOptions): Promise<void>
  /** Starts a settlement over the data that the previous one leaves when it crashes now. */
  reopen(changes?: Partial<NetworkConfig>, options?: FixtureOptions): Promise<void>
  /** Continues when the node, or its replacement, got a transaction of ours. */
  untilSent(hash: string): Promise<void>
  /** Pays, and continues when the bytes were sent. Throws when the payment has ended by then. */
  begin(transfer: Transfer.Transfer, changes?: Partial<Purpose>): Promise<Payment>
  /** Balance of the payee. */
  paid(): Promise<bigint>
  /** Calls that the settlement made of a method. */
  asked(method: string): number
}

export const isSend = (method: string) => method.startsWith('eth_sendRawTransaction')

/** A node that drops the transactions that it gets. */
export const losing = ({ method }: RpcCall) =>
  isSend(method) ? new Response('lost', { status: 503 }) : undefined

/** A node without eth_sendRawTransactionSync. */
export const withoutSync = ({ method }: RpcCall) =>
  method === 'eth_sendRawTransactionSync'
    ? { error: { code: -32601, message: 'the method does not exist' } }
    : undefined

export async function ownSettlement(
  options: {
    manners?: Parameters<typeof startNetwork>[0]
    chain?: Parameters<typeof startNetwork>[1]
    network?: Partial<NetworkConfig>
    settlement?: FixtureOptions
  } = {},
): Promise<OwnSettlement> {
  const { manners = 'usdg' } = options
  const net = await startNetwork(manners, options.chain)
  const network = networkOf(net.tap.url, manners, options.network)
  const directory = temporary()
  const start = (changes: Partial<NetworkConfig> = {}, more: FixtureOptions = {}) =>
    startFixture([{ ...network, ...changes }], directory.path, { ...options.settlement, ...more })
  const own: OwnSettlement = {
    net,
    network,
    dataDir: directory.path,
    fixture: await start(),
    async open(changes, more) {
      own.fixture = await start(changes, more)
    },
    async reopen(changes, more) {
      await own.fixture.crash()
      await own.open(changes, more)
    },
    untilSent(hash) {
      const row = own.fixture.sql
        .query<{ raw: string }, [string]>('SELECT raw FROM transactions WHERE hash = ?')
        .get(hash)
      return until(() =>
        net.tap.calls.some(({ method, params }) => isSend(method) && params[0] === row?.raw),
      )
    },
    async begin(transfer, changes) {
      const { settlement, pay } = own.fixture
      // This may end with the settlement.
      pay(transfer, changes).catch(() => undefined)
      const written = () => settlement.find(transfer)
      await until(async () => (await written()) !== undefined)
      await own.untilSent((await written())?.transaction ?? '')
      const payment = await written()
      if (payment?.state !== 'broadcast') throw new Error(`the payment is ${payment?.state}`)
      return payment
    },
    paid: () => balanceOf(net.chain, network.asset.address, payee),
    asked: (name) => net.tap.calls.filter(({ method }) => method === name).length,
    async [Symbol.asyncDispose]() {
      await own.fixture.stop()
      await net.stop()
      directory.remove()
    },
  }
  return own
}
