import { BatchSettlementEvmScheme } from '@x402/evm/batch-settlement/client'
import { wrapFetchWithPayment, x402Client } from '@x402/fetch'
import { bytesToHex, type Hex, toHex } from 'viem'
import { privateKeyToAccount } from 'viem/accounts'
import * as Voucher from '../../../src/protocol/Channel'
import * as Crypto from '../../../src/protocol/Crypto'
import { type Accept, ask, type Required } from '../../harness/buyer'
import { channelFor, channelOffer, payChannel } from '../../harness/channel'
import { network, networkId } from '../paid/network'
import type { Payer } from '../paid/payers'
import { depositAtomic, path, priceAtomic } from './merchant'

/** A channel whose vouchers are signed before they are sent, with the least work for each. */
export type Raw = {
  /** Signs the next vouchers. */
  prepare(count: number): void
  /** Sends them, one after the other. */
  pay(): Promise<Run>
  refund(): Promise<void>
}

/** Milliseconds of each request. */
export type Run = { times: number[]; elapsedMs: number }

let salts = 0

/** Opens a channel by its first request. */
export async function openRaw(url: string, payer: Payer, amount = depositAtomic): Promise<Raw> {
  const { required, whole } = await ask(url + path)
  const accepted = channelOffer(whole.accepts ? whole : required, networkId)
  if (accepted === undefined) throw new Error(`${url} offers no channel`)
  const signer = privateKeyToAccount(bytesToHex(payer.privateKey))
  const salt = toHex(++salts, { size: 32 })
  const offered = { ...required, accepts: [accepted] }
  const terms = { config: { salt }, network: networkId }
  const first = await payChannel(offered, signer, { ...terms, kind: 'deposit', amount })
  await send(url, first)
  const config = channelFor(accepted, payer.address, { salt }) as Voucher.Config
  const sign = signing(offered, accepted, { config, payer })
  let charged = priceAtomic
  let headers: string[] = []
  return {
    prepare(count) {
      headers = Array.from({ length: count }, (_, index) =>
        sign(charged + priceAtomic * BigInt(index + 1)),
      )
    },
    async pay() {
      const times: number[] = []
      const startedAt = performance.now()
      for (const header of headers.splice(0)) {
        times.push(await send(url, header))
        charged += priceAtomic
      }
      return { times, elapsedMs: performance.now() - startedAt }
    },
    async refund() {
      await send(url, sign(charged, 'refund'))
    },
  }
}

function signing(
  { resource }: Required,
  accepted: Accept,
  { config, payer }: { config: Voucher.Config; payer: Payer },
) {
  const { chainId } = network()
  const channelId = Voucher.idOf(config, chainId)
  return (maxAtomic: bigint, type = 'voucher'): string => {
    const digest = Voucher.voucherDigest(chainId, channelId, maxAtomic)
    const signature: Hex = Crypto.sign(digest, payer.privateKey)
    const voucher = { channelId, maxClaimableAmount: String(maxAtomic), signature }
    const payload = { type, channelConfig: config, voucher }
    const credential = { x402Version: 2, payload, resource, accepted }
    return Buffer.from(JSON.stringify(credential)).toString('base64')
  }
}

/** Milliseconds of a paid request. Throws when it was not paid. */
async function send(url: string, header: string): Promise<number> {
  const startedAt = performance.now()
  const response = await fetch(url + path, { headers: { 'payment-signature': header } })
  const text = await response.text()
  const ms = performance.now() - startedAt
  if (response.status !== 200 || !response.headers.has('payment-response'))
    throw new Error(`${url} answered ${response.status}: ${text}`)
  return ms
}

/** The stock client: it asks for the price before each request, signs, and sends it again. */
export type Stock = {
  /** Whole requests, and of each the part that presents the voucher. */
  pay(count: number): Promise<{ whole: Run; paid: Run }>
  refund(): Promise<void>
}

export function createStock(url: string, rpcUrl: string, payer: Payer): Stock {
  const signer = privateKeyToAccount(bytesToHex(payer.privateKey))
  const depositStrategy = () => depositAtomic
  const salt = toHex(++salts, { size: 32 })
  const scheme = new BatchSettlementEvmScheme(signer, { rpcUrl, depositStrategy, salt })
  const { asset } = network()
  const client = new x402Client().register(networkId, scheme).setSpendControls({
    allowedAssets: [
      { network: networkId, asset: asset.address, maxAmountPerPayment: String(depositAtomic) },
    ],
  })
  let paidMs = 0
  const timed = async (input: string | URL | Request, init?: RequestInit) => {
    const startedAt = performance.now()
    const response = await fetch(input, init)
    paidMs = performance.now() - startedAt
    return response
  }
  const buy = wrapFetchWithPayment(Object.assign(timed, { preconnect: fetch.preconnect }), client)
  return {
    async pay(count) {
      const whole: number[] = []
      const paid: number[] = []
      const startedAt = performance.now()
      for (let index = 0; index < count; index++) {
        const sentAt = performance.now()
        const response = await buy(url + path)
        const text = await response.text()
        whole.push(performance.now() - sentAt)
        paid.push(paidMs)
        if (response.status !== 200) throw new Error(`${url} answered ${response.status}: ${text}`)
      }
      const elapsedMs = performance.now() - startedAt
      return { whole: { times: whole, elapsedMs }, paid: { times: paid, elapsedMs } }
    },
    async refund() {
      const { success, errorReason } = await scheme.refund(url + path)
      if (!success) throw new Error(`the refund failed: ${errorReason}`)
    },
  }
}
