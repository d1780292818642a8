import type { Hex } from 'viem'
import { account } from '../../src/demo/accounts'
import { balanceOf, execute } from '../../src/demo/chains'
import * as Abi from '../../src/protocol/Abi'
import * as Voucher from '../../src/protocol/Channel'
import * as Crypto from '../../src/protocol/Crypto'
import * as Transfer from '../../src/protocol/Transfer'
import type { Presented } from '../../src/settlement/channels/state'
import { ownSettlement } from './own-settlement'
import { networkOf, payee, purposeOf } from './settlement'
import { isPostgres } from './test-ledger'

export const authorizerKey = Crypto.bytes(account(6).privateKey)

/** Terms by which everything is claimed at once, or only when a test asks for it. */
export const terms = {
  withdrawDelayMs: 900_000,
  minDepositAtomic: 500_000n,
  claimEveryMs: 90_000,
  claimAboveAtomic: 1_000_000n,
  unclaimedMaxAtomic: 50_000_000n,
}

type Options = Parameters<typeof ownSettlement>[0] & { terms?: Partial<typeof terms> }

/** A settlement that sells by channels, and a buyer of it, on a chain of its own. */
export async function ownChannels(options: Options = {}) {
  const manners = options.manners ?? 'usdc'
  const { asset } = networkOf('', manners)
  const own = await ownSettlement({
    manners,
    ...options,
    network: {
      // Native coin is nearly free, so that a claim is worth its gas.
      ethPriceUsd: 0.000001,
      channels: { ...terms, ...options.terms },
      asset: { ...asset, transfer: ['eip3009', 'permit2'] },
      ...options.network,
    },
    settlement: { receiverAuthorizerKey: authorizerKey, checkMs: 50, ...options.settlement },
  })
  const { net, network } = own
  const { chainId } = network
  let serial = 0
  /** A config of the buyer (account 1), or of another demo account. */
  const configOf = (changes: Partial<Voucher.Config> = {}, from = 1): Voucher.Config => ({
    payer: account(from).address,
    payerAuthorizer: account(from).address,
    receiver: payee,
    receiverAuthorizer: Crypto.addressOf(authorizerKey),
    token: network.asset.address,
    // A test may shorten the delay that the settlement goes by.
    withdrawDelay: Math.max(900, (network.channels?.withdrawDelayMs ?? 0) / 1000),
    salt: Crypto.hex(Crypto.keccak256(`channel ${++serial} of ${from}`)),
    ...changes,
  })
  const keyOf = (address: Hex) => {
    for (let index = 0; index < 10; index++)
      if (account(index).address === address) return Crypto.bytes(account(index).privateKey)
    throw new Error(`${address} is no demo account`)
  }
  const voucher = (
    config: Voucher.Config,
    maxAtomic: bigint,
    amountAtomic: bigint,
    changes: Partial<Voucher.Voucher> = {},
  ): Presented => {
    const channelId = Voucher.idOf(config, chainId)
    const digest = Voucher.voucherDigest(chainId, channelId, maxAtomic)
    return {
      method: 'channel',
      network: network.id,
      chainId,
      asset: config.token,
      payer: config.payer,
      payee: config.receiver,
      amountAtomic,
      nonce: Voucher.nonceOf(channelId, maxAtomic - amountAtomic),
      validAfter: 0n,
      validBefore: 2n ** 256n - 1n,
      signature: Crypto.sign(digest, keyOf(config.payerAuthorizer)),
      voucher: { channelId, config, maxAtomic, kind: 'voucher', ...changes },
    }
  }
  /** A deposit that the payer signs. */
  const signDeposit = (
    config: Voucher.Config,
    amountAtomic: bigint,
    method: 'eip3009' | 'permit2' = 'eip3009',
  ): Voucher.Deposit => {
    const until = BigInt(Math.floor(Date.now() / 1000) + 300)
    const salt = Crypto.hex(Crypto.keccak256(`deposit ${++serial}`))
    const key = keyOf(config.payer)
    const of = { config, chainId }
    if (method === 'permit2') {
      const by = { method, nonce: salt, deadline: until }
      const signature = Crypto.sign(Voucher.permitDigest(of, { amountAtomic, by }), key)
      return { amountAtomic, by: { ...by, signature } }
    }
    const by = { method, validAfter: 0n, validBefore: until, salt, signature: '0x' as Hex }
    const signed = Voucher.authorizationOf(of, { amountAtomic, by })
    const signature = Crypto.sign(Transfer.receiveDigest(signed, network.asset), key)
    return { amountAtomic, by: { ...by, signature } }
  }
  let ids = 0
  const authorize = (transfer: Presented, waitMs = 60_000) => {
    const id = `pay_channel${++ids}`
    const at = { id, receivedAt: Date.now(), client: undefined, validUntil: 0, waitMs }
    return own.fixture.settlement.authorizations.authorize(transfer, purposeOf(), at)
  }
  /** Authorizes a voucher, and charges it what it costs, by default its price. */
  const pay = async (
    transfer: Presented,
    waitMs?: number,
    amountAtomic = transfer.amountAtomic,
  ) => {
    const authorized = await authorize(transfer, waitMs)
    if (authorized.kind !== 'authorized') return authorized
    const charge = { amountAtomic, units: {} }
    const { authorizations } = own.fixture.settlement
    const { settled } = await authorizations.charge(authorized.authorization, charge)
    return { ...authorized, settled }
  }
  const read = async (id: Hex) => {
    const pair = async (call: { to: Hex; data: Hex }) =>
      Voucher.parsePair((await net.chain.rpc('eth_call', [call, 'latest'])) as Hex) ?? [0n, 0n]
    const [balance, claimed] = await pair(Voucher.channelsCall(id))
    const [, withdrawAt] = await pair(Voucher.pendingWithdrawalCall(id))
    const nonce = (await net.chain.rpc('eth_call', [Voucher.refundNonceCall(id), 'latest'])) as Hex
    return { balance, claimed, withdrawAt, refundNonce: Abi.uintAt(nonce.slice(2)) ?? 0n }
  }
  return Object.assign(own, {
    configOf,
    voucher,
    signDeposit,
    authorize,
    pay,
    /** What the chain has of a channel. */
    read,
    idOf: (config: Voucher.Config) => Voucher.idOf(config, chainId),
    row: (config: Voucher.Config) =>
      own.fixture.ledger.channels.find(Voucher.idOf(config, chainId)),
    /** Removes all channels, as a crash of the database does that has undone them. */
    loseChannels(): void {
      const { sql } = own.fixture
      sql.run(`DROP TRIGGER channels_kept${isPostgres ? ' ON channels' : ''}`)
      sql.run('DELETE FROM channels')
    },
    /** A channel with a deposit, of which the first voucher is charged. */
    async opened(amountAtomic = 5_000_000n, priceAtomic = 10_000n, from = 1) {
      const config = configOf({}, from)
      const deposit = signDeposit(config, amountAtomic)
      const done = await pay(
        voucher(config, priceAtomic, priceAtomic, { kind: 'deposit', deposit }),
      )
      if (done.kind !== 'authorized') throw new Error(JSON.stringify(done))
      return config
    },
    /** Sends a call from a demo account. */
    async send(from: Hex, call: { to: Hex; data: Hex }) {
      const [receipt] = await execute(net.chain, [{ from, ...call, gas: 500_000n }])
      return receipt
    },
    initiateWithdraw: (config: Voucher.Config, amountAtomic: bigint) =>
      execute(net.chain, [
        {
          from: config.payer,
          ...Voucher.initiateWithdrawCall(config, amountAtomic),
          gas: 300_000n,
        },
      ]),
    balance: (of: Hex) => balanceOf(net.chain, network.asset.address, of),
  })
}

export type OwnChannels = Awaited<ReturnType<typeof ownChannels>>
