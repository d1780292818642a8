// A lower bound for a facilitator here: the smallest server that makes the required calls to the
// node, and checks nothing. It makes one eth_call, and to settle one eth_sendRawTransactionSync of
// a transaction that it signs. Arguments: the chain's URL.

import { createClient } from '../../../../src/chain/client'
import * as Multicall from '../../../../src/chain/multicall'
import * as Token from '../../../../src/chain/token'
import * as Transaction from '../../../../src/chain/transaction'
import { account } from '../../../../src/demo/accounts'
import * as Crypto from '../../../../src/protocol/Crypto'
import * as Transfer from '../../../../src/protocol/Transfer'
import { network } from '../../paid/network'

const [rpcUrl = ''] = process.argv.slice(2)
const client = createClient({ urls: [rpcUrl], timeoutMs: 10_000, log: () => undefined })
const { id, chainId, asset } = network()
const relayer = account(0)
const privateKey = Crypto.bytes(relayer.privateKey)
let nonce = Number(await client.call('eth_getTransactionCount', [relayer.address, 'latest']))

type Asked = {
  paymentPayload: {
    payload: {
      signature: `0x${string}`
      authorization: Record<'from' | 'to' | 'value' | 'validBefore' | 'nonce', string>
    }
  }
}

function transferOf({ paymentPayload: { payload } }: Asked): Transfer.Transfer {
  const { from, to, value, validBefore, nonce } = payload.authorization
  return {
    method: 'eip3009',
    network: id,
    chainId,
    asset: asset.address,
    payer: from as Transfer.Transfer['payer'],
    payee: to as Transfer.Transfer['payee'],
    amountAtomic: BigInt(value),
    nonce: nonce as Transfer.Transfer['nonce'],
    validAfter: 0n,
    validBefore: BigInt(validBefore),
    signature: payload.signature,
  }
}

const server = Bun.serve({
  port: 0,
  hostname: '127.0.0.1',
  idleTimeout: 60,
  async fetch(request) {
    const transfer = transferOf((await request.json()) as Asked)
    const call = Transfer.call(transfer)
    const read = Token.balanceOf(transfer.asset, transfer.payer)
    await client.call('eth_call', [
      { ...Multicall.aggregate([read, call]), from: relayer.address },
      'latest',
    ])
    if (request.url.endsWith('/verify')) return Response.json({ isValid: true })
    const { raw } = Transaction.sign(
      {
        chainId,
        nonce: nonce++,
        maxTipWei: 1_000_000_000n,
        maxFeeWei: 20_000_000_000n,
        gasLimit: 200_000n,
        valueWei: 0n,
        ...call,
      },
      privateKey,
    )
    await client.call('eth_sendRawTransactionSync', [raw], { timeoutMs: 20_000 })
    return Response.json({ success: true })
  },
})
process.stdout.write(`http://127.0.0.1:${server.port}\n`)
