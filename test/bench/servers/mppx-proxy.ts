// mppx's own proxy with one route and one evm charge, as its documentation sets it up.

import { Proxy as MppxProxy, Service } from 'mppx/proxy'
import { evm, Mppx } from 'mppx/server'
import { payee } from '../shipped'

const mppx = Mppx.create({
  realm: 'localhost',
  secretKey: 'bench-bench-bench-bench-bench-bench',
  methods: [
    evm({
      currency: evm.assets.base.USDC,
      recipient: payee,
      settle: () => Promise.reject(new Error('no payment is expected')),
    }),
  ],
})
const proxy = MppxProxy.create({
  services: [
    Service.from('catjoke', {
      baseUrl: 'http://127.0.0.1:9',
      routes: { 'GET /joke': mppx.evm.charge({ amount: '0.01' }) },
    }),
  ],
})
const server = Bun.serve({ port: 0, hostname: '127.0.0.1', fetch: proxy.fetch })
process.stdout.write(`http://127.0.0.1:${server.port}\n`)
