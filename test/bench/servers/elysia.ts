// The smallest Elysia program, compiled with our flags: the reference for cold starts.

import { Elysia } from 'elysia'

const elysia = new Elysia().get('/', () => 'ok')
elysia.listen({ port: Number(process.env.PORT ?? 0), hostname: '127.0.0.1' })
