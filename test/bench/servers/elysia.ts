// The least an Elysia program can be: compiled with our flags, it is the reference for cold starts.

import { Elysia } from 'elysia'

const elysia = new Elysia().get('/', () => 'ok')
elysia.listen({ port: Number(process.env.PORT ?? 0), hostname: '127.0.0.1' })
